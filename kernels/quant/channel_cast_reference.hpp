#pragma once
// The loop nest of the casts with one scale per channel and block of tokens.
#include "backends/reference/scales.hpp"

namespace portile::quant {

struct channel_cast {
  tensor out{};     ///< e4m3, rows x cols, or cols x rows when transposed
  tensor out_sf{};  ///< one scale per block of `num_per_tokens` rows and column; packed along the rows
  std::int64_t rows = 0, cols = 0, num_per_tokens = 128;
  bool transposed = false;
  scale_flags flags{};
};

/// out = encode(value(r, c) * sf_inv), where value is fp32 and includes the scale of a quantised input.
template <class Space, class Value>
void cast_channels(const Space& space, const channel_cast& p, const Value& value) {
  using namespace portile::reference;
  const std::int64_t rows = p.rows, cols = p.cols, size = p.num_per_tokens;
  const bool transposed = p.transposed;
  const matrix_writer<numeric::e4m3> out(p.out);
  const scale_writer out_sf(p.out_sf, true);
  const scale_rule rule(dtype::e4m3, p.flags);
  space.for_each(
      cols, KOKKOS_LAMBDA(std::int64_t c) {
        for (std::int64_t i = 0; i * size < rows; ++i) {
          const block b = block::at(i, c, size, 1, rows, cols);
          const numeric::scale s = rule(b.amax(value));
          out_sf(i, c, s);
          b.for_each([&](std::int64_t row, std::int64_t col) {
            const float scaled = value(row, col) * s.sf_inv;
            transposed ? out(col, row, scaled) : out(row, col, scaled);
          });
        }
      });
}

}  // namespace portile::quant
