#pragma once
#include <portile/kernels/mhc/pre_big_fuse.hpp>
#include <portile/kernels/mhc/sizes.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const pre_big_fuse& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const bool from_partials = p.out_mul_splitted.defined();
  const std::int64_t channels = p.residual.extent(1) * p.residual.extent(2);
  const std::int64_t splits = from_partials            ? p.out_mul_splitted.extent(0)
                              : p.fn_splits < channels ? p.fn_splits
                                                       : channels;
  const auto residual = make_view<bf16, 3>(p.residual);
  const mixing_matrix fn(p.fn, {});
  const auto out_mul_splitted = make_view<float, 3>(p.out_mul_splitted);
  const auto sqrsum_splitted = make_view<float, 2>(p.sqrsum_splitted);
  const pre_steps steps(p);

  space.for_each(
      p.residual.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        const auto border = [&](std::int64_t s) { return s * channels / splits; };
        const float sqrsum = ordered_sum(splits, [&](std::int64_t s) {
          return from_partials ? sqrsum_splitted(s, t)
                               : partial_sqrsum(residual, t, border(s), border(s + 1));
        });
        const auto out_mul = [&](std::int64_t j) {
          return ordered_sum(splits, [&](std::int64_t s) {
            return from_partials ? out_mul_splitted(s, t, j)
                                 : partial_mix(residual, fn, t, j, border(s), border(s + 1));
          });
        };
        steps.finish(residual, t, sqrsum, out_mul);
      });
}

}  // namespace portile::mhc
