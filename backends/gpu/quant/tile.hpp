#pragma once
// A tile of 128 x 128 values held by the 512 threads of a block: eight lanes a row, 16 values each, 64 rows a
// pass. Blocks of 32 or 128 rows or columns never span tiles.
#include "backends/gpu/quant/chunk.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {

struct tile {
  static constexpr int size = 128, threads = 512, values = 16;
  static constexpr int lanes = size / values;        ///< of a row
  static constexpr int pass_rows = threads / lanes;  ///< rows that the block holds at once
  static constexpr int passes = size / pass_rows;

  static PORTILE_DEVICE int row(int thread, int pass) { return thread / lanes + pass * pass_rows; }
  static PORTILE_DEVICE int column(int thread) { return thread % lanes * values; }
};

struct tile_grid;
/// The place of a tile in the matrix.
struct tile_at {
  std::int64_t row, col;
  PORTILE_DEVICE bool holds(const tile_grid& g, unsigned r, unsigned c) const;
};

/// Tiles of a matrix in the order of its rows, or of the rows of strips of some tiles' width.
struct tile_grid {
  std::int64_t rows = 0, cols = 0, count = 0;
  narrow_divider strip, across;  ///< tiles of a strip, and of one of its rows

  tile_grid() = default;
  /// `strip_width`: 0 for one strip; also taken where the width is no multiple of it.
  tile_grid(std::int64_t num_rows, std::int64_t num_cols, std::int64_t strip_width = 0)
      : rows(num_rows), cols(num_cols) {
    const std::int64_t width = numeric::ceil_div(cols, tile::size),
                       height = numeric::ceil_div(rows, tile::size);
    count = width * height;
    if (!fits() || count == 0) return;
    if (strip_width == 0 || width % strip_width != 0) strip_width = width;
    strip = narrow_divider(strip_width * height);
    across = narrow_divider(strip_width);
  }
  /// Else the grid cannot be walked.
  bool fits() const { return count < narrow_divider::limit; }
  PORTILE_DEVICE tile_at at(std::int64_t index) const {
    const auto n = static_cast<std::uint32_t>(index), s = strip.quotient(n), in_strip = n - s * strip.value();
    const std::uint32_t down = across.quotient(in_strip);
    const std::uint32_t right = s * across.value() + in_strip - down * across.value();
    return {std::int64_t{down} * tile::size, std::int64_t{right} * tile::size};
  }
};

PORTILE_DEVICE bool tile_at::holds(const tile_grid& g, unsigned r, unsigned c) const {
  return row + r < g.rows && col + c < g.cols;
}

}  // namespace portile::gpu
