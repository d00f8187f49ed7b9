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
  PORTILE_DEVICE bool holds(const tile_grid& g, int r, int c) const;
};

/// Tiles of a matrix in the order of its rows. A row's end lies between chunks of 16 values.
struct tile_grid {
  std::int64_t rows = 0, cols = 0, count = 0;
  divider across;

  tile_grid() = default;
  tile_grid(std::int64_t num_rows, std::int64_t num_cols) : rows(num_rows), cols(num_cols) {
    const std::int64_t width = numeric::ceil_div(cols, tile::size);
    count = width * numeric::ceil_div(rows, tile::size);
    if (width > 0) across = divider(width, count);
  }
  PORTILE_DEVICE tile_at at(std::int64_t index) const {
    const std::int64_t down = across.quotient(index);
    return {down * tile::size, (index - down * across.value()) * tile::size};
  }
};

PORTILE_DEVICE bool tile_at::holds(const tile_grid& g, int r, int c) const {
  return row + r < g.rows && col + c < g.cols;
}

}  // namespace portile::gpu
