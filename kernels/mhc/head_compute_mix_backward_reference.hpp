#pragma once
#include <portile/kernels/mhc/head_compute_mix_backward.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const head_compute_mix_backward& p) {
  using namespace portile::reference;
  const std::int64_t tokens = p.x.extent(0), mult = p.x.extent(1);
  const auto x = make_view<float, 2>(p.x), out_grad = make_view<float, 2>(p.out_grad),
             x_grad = make_view<float, 2>(p.x_grad);
  const auto scale = make_view<float, 1>(p.scale), base = make_view<float, 1>(p.base);
  const auto scale_grad = make_view<float, 1>(p.scale_grad), base_grad = make_view<float, 1>(p.base_grad);
  const bool accumulate = p.accumulate;
  const auto z_grad = KOKKOS_LAMBDA(std::int64_t t, std::int64_t j) {
    const float s = numeric::sigmoid_f32(::fmaf(x(t, j), scale(0), base(j)));
    return s * (1.0f - s) * out_grad(t, j);
  };
  space.for_each(
      tokens, mult,
      KOKKOS_LAMBDA(std::int64_t t, std::int64_t j) { x_grad(t, j) = z_grad(t, j) * scale(0); });
  space.for_each(
      mult, KOKKOS_LAMBDA(std::int64_t j) {
        double sum = 0;
        for (std::int64_t t = 0; t < tokens; ++t) sum += z_grad(t, j);
        add_gradient(base_grad(j), sum, accumulate);
      });
  space.for_each(
      1, KOKKOS_LAMBDA(std::int64_t) {
        double sum = 0;
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t j = 0; j < mult; ++j) sum += static_cast<double>(z_grad(t, j)) * x(t, j);
        add_gradient(scale_grad(0), sum, accumulate);
      });
}

}  // namespace portile::mhc
