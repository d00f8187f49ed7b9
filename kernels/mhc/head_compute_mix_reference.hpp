#pragma once
#include <portile/kernels/mhc/head_compute_mix.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const head_compute_mix& p) {
  using namespace portile::reference;
  const auto x = make_view<float, 2>(p.x), out = make_view<float, 2>(p.out);
  const auto scale = make_view<float, 1>(p.scale), base = make_view<float, 1>(p.base);
  const float pre_eps = static_cast<float>(p.pre_eps);
  space.for_each(
      p.x.extent(0), p.x.extent(1), KOKKOS_LAMBDA(std::int64_t t, std::int64_t j) {
        out(t, j) = numeric::sigmoid_f32(::fmaf(x(t, j), scale(0), base(j))) + pre_eps;
      });
}

}  // namespace portile::mhc
