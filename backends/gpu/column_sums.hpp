#pragma once
// Sums over the rows of a matrix of partial sums, column by column.
#include "backends/gpu/reduce.hpp"
#include "backends/gpu/values.hpp"

namespace portile::gpu {

/// The matrix, fp32, unit column stride.
struct partial_rows {
  const float* data = nullptr;
  std::int64_t row_stride = 0, rows = 0, cols = 0;
  bool aligned = false;  ///< data and rows at multiples of 16 bytes
  int quads = 8;         ///< of columns that a block sums

  partial_rows() = default;
  /// `matrices`: how many of this shape are summed at a time.
  partial_rows(const float* first, std::int64_t stride, std::int64_t num_rows, std::int64_t num_cols,
               std::int64_t matrices = 1)
      : data(first),
        row_stride(stride),
        rows(num_rows),
        cols(num_cols),
        aligned(reinterpret_cast<std::uintptr_t>(first) % 16 == 0 && (num_rows <= 1 || stride % 4 == 0)) {
    // Narrower blocks where the device would stand idle: two blocks for each multiprocessor of the H200, on
    // any device.
    while (quads > 2 && matrices * cols < 264 * columns()) quads /= 2;
  }
  constexpr int columns() const { return 4 * quads; }
  std::int64_t blocks() const { return numeric::ceil_div(cols, 4 * quads); }
};

/// A block sums a few neighbouring columns: four a thread, all rows spread over the other threads, so that
/// few loads follow each other. In double: the result is the exact sum rounded once, almost always, and the
/// order, which is that of the shape, hardly matters.
struct column_sums {
  static constexpr int threads = 256;
  /// Bytes of shared memory for any wave size.
  static constexpr std::size_t shared_bytes = std::size_t{threads} / 32 * 32 * sizeof(double);

  /// The sum of column `first + thread`, in the block's first threads that have such a column; 0 in the other
  /// threads. For all threads of a block; a barrier is needed before shared memory is used again.
  template <class Block>
  static PORTILE_DEVICE double sum(const Block& block, const partial_rows& m, std::int64_t first) {
    static_assert(Block::threads == threads);
    constexpr int ahead = 4;
    const int step = threads / m.quads;
    const std::int64_t col = first + block.thread() % m.quads * 4;
    double sums[4] = {};
    if (m.aligned && col + 4 <= m.cols) {
      for (std::int64_t row = block.thread() / m.quads; row < m.rows; row += step * ahead) {
        words4 v[ahead];
        PORTILE_UNROLL
        for (int i = 0; i < ahead; ++i)
          v[i] = row + i * step < m.rows ? load16(m.data + (row + i * step) * m.row_stride + col) : words4{};
        PORTILE_UNROLL
        for (int i = 0; i < ahead; ++i) {
          PORTILE_UNROLL
          for (int j = 0; j < 4; ++j) sums[j] += static_cast<double>(numeric::bits_float(v[i].w[j]));
        }
      }
    } else {
      for (std::int64_t row = block.thread() / m.quads; row < m.rows; row += step) {
        PORTILE_UNROLL
        for (int j = 0; j < 4; ++j)
          if (col + j < m.cols) sums[j] += static_cast<double>(m.data[row * m.row_stride + col + j]);
      }
    }
    for (int mask = m.quads; mask < Block::wave_size; mask *= 2) {
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) sums[j] += block.shuffle_xor(sums[j], mask);
    }
    const int columns = m.columns();
    if (block.lane() < m.quads) {
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j)
        block.template shared<double>()[block.wave() * columns + block.lane() * 4 + j] = sums[j];
    }
    block.barrier();
    double total = 0;
    if (block.thread() < columns) {
      PORTILE_UNROLL
      for (int w = 0; w < Block::num_waves; ++w)
        total += block.template shared<double>()[w * columns + block.thread()];
    }
    return total;
  }
};

/// out[i, j] = the sum over the partial rows of column j of matrix i, added to what is there with
/// `accumulate`; rounded once.
template <class T>
struct add_partial_rows {
  static constexpr int threads = column_sums::threads;
  struct params {
    partial_rows partial;         ///< of matrix 0
    std::int64_t partial_matrix;  ///< elements from one matrix to the next; keeps the alignment
    T* out;
    std::int64_t out_stride, blocks;
    divider tiles;
    bool accumulate;
  };

  static void launch(const context& c, const partial_rows& partial, std::int64_t matrices,
                     std::int64_t partial_matrix, T* out, std::int64_t out_stride, bool accumulate) {
    params k{partial, partial_matrix, out, out_stride, 0, {}, accumulate};
    const std::int64_t tiles = partial.blocks();
    k.blocks = matrices * tiles;
    if (k.blocks == 0) return;
    k.tiles = divider(tiles, k.blocks);
    gpu::launch<add_partial_rows>(c, k.blocks, column_sums::shared_bytes, k);
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t b = block.index(); b < p.blocks; b += block.grid()) {
      const std::int64_t i = p.tiles.quotient(b), first = (b - i * p.tiles.value()) * p.partial.columns();
      partial_rows partial = p.partial;
      partial.data += i * p.partial_matrix;
      T* out = p.out + i * p.out_stride;
      const std::int64_t j = first + block.thread();
      const bool mine = block.thread() < partial.columns() && j < partial.cols;
      const double old = mine && p.accumulate ? static_cast<double>(load_value(out, j)) : 0.0;
      const double sum = old + column_sums::sum(block, partial, first);
      if (mine) {
        if constexpr (std::is_same_v<T, float>)
          out[j] = static_cast<float>(sum);
        else
          out[j] = numeric::double_to_bf16(sum);
      }
      block.barrier();
    }
  }
};

}  // namespace portile::gpu
