#pragma once
#include <portile/kernels/mhc/reduce_partials_and_rmsnorm.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const reduce_partials_and_rmsnorm& p) {
  using namespace portile::reference;
  const std::int64_t splits = p.out_mul_splitted.extent(0), groups = p.out_mul_splitted.extent(2);
  const auto out_mul_splitted = make_view<float, 4>(p.out_mul_splitted);
  const auto sqrsum_splitted = make_view<float, 3>(p.sqrsum_splitted);
  const optional_view<float, 3> out_mul(p.out_mul);
  const optional_view<float, 2> sqrsum(p.sqrsum);
  const auto out = make_view<float, 2>(p.out);
  const float size = static_cast<float>(p.rms_group_size), eps = static_cast<float>(p.norm_eps);
  space.for_each(
      p.out.extent(0), p.out.extent(1), KOKKOS_LAMBDA(std::int64_t t, std::int64_t j) {
        for (std::int64_t g = 0; g < groups; ++g) {
          const float squares = ordered_sum(splits, [&](std::int64_t s) { return sqrsum_splitted(s, t, g); });
          const float mul = ordered_sum(splits, [&](std::int64_t s) { return out_mul_splitted(s, t, g, j); });
          const float term = mul * rms_rstd(squares, size, eps);
          out(t, j) = g == 0 ? term : out(t, j) + term;
          out_mul.set(mul, t, g, j);
          if (j == 0) sqrsum.set(squares, t, g);
        }
      });
}

}  // namespace portile::mhc
