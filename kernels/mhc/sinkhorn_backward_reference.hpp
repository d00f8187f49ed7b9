#pragma once
#include <portile/kernels/mhc/sinkhorn_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const sinkhorn_backward& p) {
  using namespace portile::reference;
  const std::int64_t mult = p.x.extent(1), last = 2 * p.repeat - 1;
  const auto x = make_view<float, 3>(p.x), out_grad = make_view<float, 3>(p.out_grad),
             x_grad = make_view<float, 3>(p.x_grad);
  const float eps = static_cast<float>(p.eps);
  space.for_each(
      p.x.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        float iterate[max_mult * max_mult], grad[max_mult * max_mult];
        const auto a = [&](std::int64_t i, std::int64_t o) -> float& { return iterate[i * mult + o]; };
        const auto g = [&](std::int64_t i, std::int64_t o) -> float& { return grad[i * mult + o]; };
        const auto softmax = [&] {
          for (std::int64_t k = 0; k < mult * mult; ++k) iterate[k] = x(t, k / mult, k % mult);
          softmax_rows(a, mult);
        };
        for (std::int64_t k = 0; k < mult * mult; ++k) grad[k] = out_grad(t, k / mult, k % mult);
        for (std::int64_t q = last; q >= 1; --q) {
          softmax();  // once more from the start: slow, and nothing is kept
          add_to_all(a, mult, eps);
          for (std::int64_t before = 1; before < q; ++before) normalise_step(a, mult, before, eps);
          normalise_step_backward(a, g, mult, q, eps);
        }
        softmax();
        for (std::int64_t i = 0; i < mult; ++i) {
          const float sum = ordered_sum(mult, [&](std::int64_t o) { return g(i, o) * a(i, o); });
          for (std::int64_t o = 0; o < mult; ++o) x_grad(t, i, o) = (g(i, o) - sum) * a(i, o);
        }
      });
}

}  // namespace portile::mhc
