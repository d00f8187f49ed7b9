#pragma once
#include <portile/kernels/mhc/pre_apply_mix_backward.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const pre_apply_mix_backward& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const std::int64_t hidden = p.x.extent(2);
  const auto x = make_view<bf16, 3>(p.x), x_grad = make_view<bf16, 3>(p.x_grad);
  const auto out_grad = make_view<bf16, 2>(p.out_grad);
  const auto mix = make_view<float, 2>(p.mix), mix_grad = make_view<float, 2>(p.mix_grad);
  const bool has_x_grad = p.x_grad.defined(), accumulate = p.accumulate;
  space.for_each(
      p.x.extent(0), p.x.extent(1), KOKKOS_LAMBDA(std::int64_t t, std::int64_t i) {
        double sum = 0;
        for (std::int64_t h = 0; h < hidden; ++h) {
          const float g = load(out_grad(t, h));
          sum += static_cast<double>(g) * load(x(t, i, h));
          if (!has_x_grad) continue;
          bf16& to = x_grad(t, i, h);
          store(to, accumulate ? ::fmaf(mix(t, i), g, load(to)) : mix(t, i) * g);
        }
        mix_grad(t, i) = static_cast<float>(sum);
      });
}

}  // namespace portile::mhc
