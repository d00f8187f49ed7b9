#pragma once
#include <portile/kernels/quant/per_block_cast_lossless.hpp>

#include "backends/reference/scales.hpp"

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_block_cast_lossless& p) {
  using namespace portile::reference;
  const std::int64_t rows = p.out.extent(0), cols = p.out.extent(1);
  const std::int64_t in_rows = p.x_block_rows, in_cols = p.x_block_cols, out_rows = p.out_block_rows,
                     out_cols = p.out_block_cols;
  const std::int64_t in_width = numeric::ceil_div(cols, in_cols),
                     out_width = numeric::ceil_div(cols, out_cols);
  const matrix_reader<numeric::e2m1x2> x(p.x);
  const matrix_writer<numeric::e4m3> out(p.out);
  const scale_reader x_sf(p.x_sf, in_cols == 1);
  const scale_writer out_sf(p.out_sf, false);
  const trap_sink trap = space.trap;

  space.for_each(
      numeric::ceil_div(rows, out_rows), KOKKOS_LAMBDA(std::int64_t i) {
        for (std::int64_t j = 0; j < out_width; ++j) {
          const block b = block::at(i, j, out_rows, out_cols, rows, cols);
          const auto exponent = [&](std::int64_t r, std::int64_t c) {
            return static_cast<int>(numeric::exponent_field(x_sf(r / in_rows, c / in_cols)));
          };
          int largest = 0;
          b.for_each([&](std::int64_t r, std::int64_t c) {
            largest = exponent(r, c) > largest ? exponent(r, c) : largest;
          });
          const int base = largest >= 6 ? largest - 6 : 0;
          if (largest < 7) trap.raise(0, i * out_width + j);
          const float sf = numeric::ue8m0_to_float(static_cast<std::uint8_t>(base));
          out_sf(i, j, {sf, 0, static_cast<std::uint8_t>(base)});
          b.for_each([&](std::int64_t r, std::int64_t c) {
            const int shift = exponent(r, c) - base;
            if (shift < -5) trap.raise(1, r / in_rows * in_width + c / in_cols);
            const float factor = shift > -127
                                     ? numeric::ue8m0_to_float(static_cast<std::uint8_t>(shift + 127))
                                     : 0.0f;  // 2^shift
            out(r, c, x(r, c) * factor);
          });
        }
      });
}

}  // namespace portile::quant
