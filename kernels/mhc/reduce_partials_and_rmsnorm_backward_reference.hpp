#pragma once
#include <portile/kernels/mhc/reduce_partials_and_rmsnorm_backward.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const reduce_partials_and_rmsnorm_backward& p) {
  using namespace portile::reference;
  const std::int64_t mixes = p.out_grad.extent(1);
  const auto out_grad = make_view<float, 2>(p.out_grad);
  const auto out_mul = make_view<float, 3>(p.out_mul), out_mul_grad = make_view<float, 3>(p.out_mul_grad);
  const auto sqrsum = make_view<float, 2>(p.sqrsum), sqrsum_grad = make_view<float, 2>(p.sqrsum_grad);
  const float size = static_cast<float>(p.rms_group_size), eps = static_cast<float>(p.norm_eps);
  space.for_each(
      p.sqrsum.extent(0), p.sqrsum.extent(1), KOKKOS_LAMBDA(std::int64_t t, std::int64_t g) {
        const float r = rms_rstd(sqrsum(t, g), size, eps);
        double r_grad = 0;
        for (std::int64_t j = 0; j < mixes; ++j) {
          r_grad += static_cast<double>(out_grad(t, j)) * out_mul(t, g, j);
          out_mul_grad(t, g, j) = out_grad(t, j) * r;
        }
        sqrsum_grad(t, g) = sqrsum_gradient(static_cast<float>(r_grad), r, sqrsum(t, g), size, eps);
      });
}

}  // namespace portile::mhc
