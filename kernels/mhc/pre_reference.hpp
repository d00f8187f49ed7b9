#pragma once
#include <portile/kernels/mhc/pre.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const pre& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const std::int64_t channels = p.fn.extent(1), splits = p.n_splits < channels ? p.n_splits : channels;
  const auto residual = make_view<bf16, 3>(p.residual);
  const mixing_matrix fn(p.fn, p.norm_weight);
  const optional_view<float, 2> saved_out_mul(p.out_mul);
  const optional_view<float, 1> saved_sqrsum(p.sqrsum);
  const pre_steps steps(p);

  space.for_each(
      p.residual.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        const auto border = [&](std::int64_t s) { return s * channels / splits; };
        const float sqrsum = ordered_sum(
            splits, [&](std::int64_t s) { return partial_sqrsum(residual, t, border(s), border(s + 1)); });
        saved_sqrsum.set(sqrsum, t);
        const auto out_mul = [&](std::int64_t j) {
          const float mul = ordered_sum(splits, [&](std::int64_t s) {
            return partial_mix(residual, fn, t, j, border(s), border(s + 1));
          });
          saved_out_mul.set(mul, t, j);
          return mul;
        };
        steps.finish(residual, t, sqrsum, out_mul);
      });
}

}  // namespace portile::mhc
