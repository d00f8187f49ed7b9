#pragma once
#include <portile/kernels/mhc/pre_norm_fn_partials.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const pre_norm_fn_partials& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const std::int64_t tokens = p.residual.extent(0), mixes = p.fn.extent(0), splits = p.n_splits,
                     group = p.rms_group_size;
  const std::int64_t groups = p.sqrsum_splitted.extent(2);
  const auto residual = make_view<bf16, 3>(p.residual);
  const mixing_matrix fn(p.fn, {});
  const auto out_mul = make_view<float, 4>(p.out_mul_splitted);
  const auto sqrsum = make_view<float, 3>(p.sqrsum_splitted);
  space.for_each(
      splits, tokens, KOKKOS_LAMBDA(std::int64_t s, std::int64_t t) {
        for (std::int64_t g = 0; g < groups; ++g) {
          const std::int64_t first = g * group + s * group / splits,
                             end = g * group + (s + 1) * group / splits;
          sqrsum(s, t, g) = partial_sqrsum(residual, t, first, end);
          for (std::int64_t j = 0; j < mixes; ++j)
            out_mul(s, t, g, j) = partial_mix(residual, fn, t, j, first, end);
        }
      });
}

}  // namespace portile::mhc
