#pragma once
#include <portile/kernels/mhc/pre_norm_fn.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const pre_norm_fn& p) {
  using namespace portile::reference;
  const std::int64_t mixes = p.fn.extent(0), channels = p.fn.extent(1),
                     splits = p.n_splits < channels ? p.n_splits : channels;
  const auto residual = make_view<numeric::bf16, 3>(p.residual);
  const mixing_matrix fn(p.fn, p.norm_weight);
  const optional_view<float, 2> out_mul(p.out_mul);
  const optional_view<float, 1> sqrsum(p.sqrsum);
  const auto out = make_view<float, 2>(p.out);
  const float size = static_cast<float>(channels), eps = static_cast<float>(p.norm_eps);

  space.for_each(
      p.out.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        const auto border = [&](std::int64_t s) { return s * channels / splits; };
        const float squares = ordered_sum(
            splits, [&](std::int64_t s) { return partial_sqrsum(residual, t, border(s), border(s + 1)); });
        const float r = rms_rstd(squares, size, eps);
        sqrsum.set(squares, t);
        for (std::int64_t j = 0; j < mixes; ++j) {
          const float mul = ordered_sum(splits, [&](std::int64_t s) {
            return partial_mix(residual, fn, t, j, border(s), border(s + 1));
          });
          out_mul.set(mul, t, j);
          out(t, j) = mul * r;
        }
      });
}

}  // namespace portile::mhc
