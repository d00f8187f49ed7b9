#pragma once
#include <portile/kernels/mhc/pre_split_mixes_backward.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const pre_split_mixes_backward& p) {
  using namespace portile::reference;
  const std::int64_t tokens = p.x.extent(0), mult = p.pre_mix_grad.extent(1), mixes = p.x.extent(1);
  const auto x = make_view<float, 2>(p.x), x_grad = make_view<float, 2>(p.x_grad);
  const mix_affine affine{make_view<float, 1>(p.scale), make_view<float, 1>(p.base), mult};
  const auto pre_mix_grad = make_view<float, 2>(p.pre_mix_grad),
             post_mix_grad = make_view<float, 2>(p.post_mix_grad);
  const auto comb_mix_grad = make_view<float, 3>(p.comb_mix_grad);
  const auto scale_grad = make_view<float, 1>(p.scale_grad), base_grad = make_view<float, 1>(p.base_grad);
  const float post_mult_value = static_cast<float>(p.post_mult_value);
  const bool accumulate = p.accumulate;

  const auto z_grad = KOKKOS_LAMBDA(std::int64_t t, std::int64_t j) {
    if (j >= 2 * mult) return comb_mix_grad(t, j / mult - 2, j % mult);
    const float s = numeric::sigmoid_f32(affine(x(t, j), j));
    const float grad = j < mult ? pre_mix_grad(t, j) : post_mult_value * post_mix_grad(t, j - mult);
    return grad * (s * (1.0f - s));
  };
  space.for_each(
      tokens, mixes, KOKKOS_LAMBDA(std::int64_t t, std::int64_t j) {
        x_grad(t, j) = z_grad(t, j) * affine.scale(affine.segment(j));
      });
  space.for_each(
      mixes, KOKKOS_LAMBDA(std::int64_t j) {
        double sum = 0;
        for (std::int64_t t = 0; t < tokens; ++t) sum += z_grad(t, j);
        add_gradient(base_grad(j), sum, accumulate);
      });
  space.for_each(
      3, KOKKOS_LAMBDA(std::int64_t segment) {
        double sum = 0;
        for (std::int64_t j = segment * mult; j < (segment < 2 ? (segment + 1) * mult : mixes); ++j)
          for (std::int64_t t = 0; t < tokens; ++t) sum += static_cast<double>(z_grad(t, j)) * x(t, j);
        add_gradient(scale_grad(segment), sum, accumulate);
      });
}

}  // namespace portile::mhc
