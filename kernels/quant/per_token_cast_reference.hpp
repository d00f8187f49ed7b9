#pragma once
#include <portile/kernels/quant/per_token_cast.hpp>

#include "backends/reference/scales.hpp"

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_token_cast& p) {
  using namespace portile::reference;
  using numeric::amax_step, numeric::float_bits;
  const std::int64_t hidden = p.out.dtype == dtype::e2m1x2 ? p.out.extent(1) * 2 : p.out.extent(1);
  const std::int64_t group = p.num_per_channels;
  const std::int64_t block_rows = p.x_sf ? p.x_block_rows : 1, block_cols = p.x_sf ? p.x_block_cols : 1;
  const scale_reader x_sf(p.x_sf, block_cols == 1);
  const scale_writer out_sf(p.out_sf, false);
  const scale_flags flags = flags_of(p);
  const float clamp = default_clamp(p.out.dtype, p.use_e4m3_sf), max_q = max_code(p.out.dtype);
  const bool stochastic = p.stochastic_rounding;

  visit<float, numeric::bf16, numeric::e4m3, numeric::e2m1x2>(p.x.dtype, [&](auto in) {
    visit<numeric::e4m3, numeric::e2m1x2>(p.out.dtype, [&](auto code) {
      const matrix_reader<decltype(in)> x(p.x);
      const matrix_writer<decltype(code)> out(p.out);
      space.for_each(p.x.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        for (std::int64_t first = 0; first < hidden; first += group) {
          const std::int64_t end = first + group < hidden ? first + group : hidden;
          float amax = 0;
          for (std::int64_t j = first; j < end; ++j)
            amax = amax_step(amax, x(t, j) * x_sf(t / block_rows, j / block_cols));
          const numeric::scale s = make_scale(amax, clamp, max_q, flags);
          out_sf(t, first / group, s);
          const auto scaled = [&](std::int64_t j) { return x(t, j) * (x_sf(t / block_rows, j / block_cols) * s.sf_inv); };
          for (std::int64_t j = first; j < end; ++j) {
            if (!stochastic) {
              out(t, j, scaled(j));
              continue;
            }
            const std::int64_t q = j / 4 * 4;
            const auto words = numeric::sr_hash(float_bits(scaled(q)), float_bits(scaled(q + 1)), float_bits(scaled(q + 2)),
                                                float_bits(scaled(q + 3)), static_cast<std::uint32_t>(j / 4));
            out.stochastic(t, j, scaled(j), words.r0);
          }
        }
      });
    });
  });
}

}  // namespace portile::quant
