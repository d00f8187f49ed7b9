#pragma once
#include <portile/kernels/mhc/post_backward.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const post_backward& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const std::int64_t tokens = p.x.extent(0), hidden = p.x.extent(1), mult = p.residual.extent(1);
  const auto x = make_view<bf16, 2>(p.x), x_grad = make_view<bf16, 2>(p.x_grad);
  const auto residual = make_view<bf16, 3>(p.residual), out_grad = make_view<bf16, 3>(p.out_grad);
  const auto residual_grad = make_view<bf16, 3>(p.residual_grad);
  const auto post_mix = make_view<float, 2>(p.post_mix), post_mix_grad = make_view<float, 2>(p.post_mix_grad);
  const auto comb_mix = make_view<float, 3>(p.comb_mix), comb_mix_grad = make_view<float, 3>(p.comb_mix_grad);
  const bool has_residual_grad = p.residual_grad.defined();

  space.for_each(
      tokens, hidden, KOKKOS_LAMBDA(std::int64_t t, std::int64_t h) {
        const auto stream = [&](std::int64_t o) { return load(out_grad(t, o, h)); };
        store(x_grad(t, h), apply_mix(
                                mult, [&](std::int64_t o) { return post_mix(t, o); }, stream));
        for (std::int64_t i = 0; has_residual_grad && i < mult; ++i)
          store(residual_grad(t, i, h), apply_mix(
                                            mult, [&](std::int64_t o) { return comb_mix(t, i, o); }, stream));
      });
  space.for_each(
      tokens, mult, KOKKOS_LAMBDA(std::int64_t t, std::int64_t o) {
        double sum = 0;
        for (std::int64_t h = 0; h < hidden; ++h)
          sum += static_cast<double>(load(x(t, h))) * load(out_grad(t, o, h));
        post_mix_grad(t, o) = static_cast<float>(sum);
        for (std::int64_t i = 0; i < mult; ++i) {
          sum = 0;
          for (std::int64_t h = 0; h < hidden; ++h)
            sum += static_cast<double>(load(residual(t, i, h))) * load(out_grad(t, o, h));
          comb_mix_grad(t, i, o) = static_cast<float>(sum);
        }
      });
}

}  // namespace portile::mhc
