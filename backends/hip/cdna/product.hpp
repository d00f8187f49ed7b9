#pragma once
// Products by matrix instructions, a tile of 128 x 128 results a block of four waves. Each step of 64 bytes
// along K goes from global memory through registers to one of two buffers in LDS, while the waves multiply
// out of the other.
#include "backends/gpu/gemm/grouped_tn.hpp"
#include "backends/hip/cdna/parts.hpp"

namespace portile::hip {

/// Two by two waves of 64 x 64 results, two by two atoms each; a step along K at a time. A buffer in LDS
/// holds the step's rows of a, then those of b.
template <class Atom>
struct wave_tiles {
  using atom = Atom;
  static constexpr int threads = 256, rows = 128, cols = 128;
  static constexpr int wave_rows = 64, atoms = wave_rows / atom::rows;
  static constexpr int depth = row_chunks * chunk_values<atom>;  ///< channels of a step
  static constexpr int tile_bytes = rows * row_bytes;
  static constexpr int reads = row_chunks / atom::groups;  ///< of a lane, in each of its rows
  static constexpr int read_depth = depth / reads;         ///< channels that a wave has then

  struct sums {
    typename accumulator<atom>::type v[atoms][atoms];
    PORTILE_DEVICE void clear() {
      PORTILE_UNROLL
      for (int i = 0; i < atoms * atoms; ++i) {
        PORTILE_UNROLL
        for (int r = 0; r < atom::results; ++r) v[i / atoms][i % atoms][r] = 0.0f;
      }
    }
  };
  /// f(row, column, sum) for the thread's results that lie before row `rows_end` and column `cols_end`.
  template <class F>
  static PORTILE_DEVICE void each(int thread, std::int64_t row0, std::int64_t rows_end, std::int64_t col0,
                                  std::int64_t cols_end, const sums& s, F f) {
    const int wave = thread / atom::wave, lane = thread % atom::wave;
    PORTILE_UNROLL
    for (int i = 0; i < atoms; ++i) {
      PORTILE_UNROLL
      for (int r = 0; r < atom::results; ++r) {
        const std::int64_t m = row0 + wave / 2 * wave_rows + i * atom::rows + atom::result(lane, r).row;
        if (m >= rows_end) continue;
        PORTILE_UNROLL
        for (int j = 0; j < atoms; ++j) {
          const std::int64_t n = col0 + wave % 2 * wave_rows + j * atom::cols + atom::result(lane, r).col;
          if (n < cols_end) f(m, n, s.v[i][j][r]);
        }
      }
    }
  }

  /// to += the product of the step in a buffer; then(i) after the i-th read.
  template <class Block, class F>
  static PORTILE_DEVICE void multiply(const Block& block, const unsigned char* buffer, sums& to, F then) {
    // A lane reads 16 bytes of a row. Where the instruction takes fewer it is issued several times: it gets
    // other channels than its map says, but the same ones of both factors.
    constexpr int issues = chunk_bytes / (4 * atom::words);
    const int row = block.lane() % atom::rows, group = block.lane() / atom::rows;
    const int a_row = block.wave() / 2 * wave_rows + row, b_row = block.wave() % 2 * wave_rows + row;
    PORTILE_UNROLL
    for (int read = 0; read < reads; ++read) {
      const int chunk = read * atom::groups + group;
      gpu::words4 a[atoms], b[atoms];
      PORTILE_UNROLL
      for (int i = 0; i < atoms; ++i) {
        a[i] = gpu::load16(buffer + chunk_at(a_row + i * atom::rows, chunk));
        b[i] = gpu::load16(buffer + tile_bytes + chunk_at(b_row + i * atom::rows, chunk));
      }
      PORTILE_UNROLL
      for (int issue = 0; issue < issues; ++issue) {
        PORTILE_UNROLL
        for (int i = 0; i < atoms; ++i) {
          PORTILE_UNROLL
          for (int j = 0; j < atoms; ++j) {
            std::uint32_t x[atom::words], y[atom::words];
            PORTILE_UNROLL
            for (int w = 0; w < atom::words; ++w) {
              x[w] = a[i].w[issue * atom::words + w];
              y[w] = b[j].w[issue * atom::words + w];
            }
            multiply_add(atom{}, to.v[i][j], x, y);
          }
        }
      }
      then(read);
    }
  }
};

/// a * b^T for the factors of gemm.nt and gemm.grouped_nt.
template <class Part, class A, class B>
struct matrix_product : gpu::nt_operands<A, B> {
  using operands = gpu::nt_operands<A, B>;
  using operands::quantised, operands::scale_block;
  using recipe = decltype(Part::for_factor(A{}));
  using atom = typename recipe::atom;
  static constexpr std::int64_t a_alignment = chunk_alignment<atom, A>(),
                                b_alignment = chunk_alignment<atom, B>();
  static PORTILE_DEVICE std::int64_t tile_of(std::int64_t work, std::int64_t tiles) {
    return hip::tile_of(work, tiles, Part::dies);
  }

  struct shape : wave_tiles<atom> {
    /// Blocks of b's scales that a step meets; a meets one.
    static constexpr int scale_blocks =
        shape::depth > operands::scale_block ? shape::depth / operands::scale_block : 1;
    static constexpr int scale_bytes = operands::quantised ? (1 + scale_blocks) * shape::rows * 4 : 0;
    static constexpr int buffer_bytes = 2 * shape::tile_bytes + scale_bytes;
    static constexpr std::size_t shared_bytes = 2 * buffer_bytes;
  };
  using sums = typename shape::sums;

  /// The tile at (row0, col0).
  template <class Block>
  PORTILE_DEVICE void operator()(const Block& block, std::int64_t row0, std::int64_t col0, sums& sum) const {
    sum.clear();
    if constexpr (compiling_for(Part::name) && Block::wave_size == atom::wave) {
      unsigned char* const shared = block.template shared<unsigned char>();
      sums part;
      if constexpr (quantised) part.clear();
      step next;
      load(block.thread(), row0, col0, 0, next);
      put(block.thread(), shared, next);
      block.barrier();
      int buffer = 0;
      for (std::int64_t k0 = 0; k0 < this->k; k0 += shape::depth) {
        const bool last = k0 + shape::depth >= this->k;
        if (!last)
          load(block.thread(), row0, col0, k0 + shape::depth, next);  // on its way while this one computes
        multiply(block, shared + buffer * shape::buffer_bytes, k0, last, part, sum);
        buffer ^= 1;
        if (!last) put(block.thread(), shared + buffer * shape::buffer_bytes, next);
        block.barrier();
      }
    } else {
      stop();
    }
  }

 private:
  static constexpr int own_chunks =
      shape::rows * row_chunks / shape::threads;  ///< of each factor, a thread's
  /// What a thread brings of a step.
  struct step {
    gpu::words4 a[own_chunks], b[own_chunks];
    float scales[quantised ? shape::scale_blocks : 1];  ///< of a row of a, or of a column of b
  };
  static PORTILE_DEVICE int chunk_row(int thread, int i) {
    return (thread + i * shape::threads) / row_chunks;
  }
  static PORTILE_DEVICE int chunk_col(int thread) { return thread % row_chunks; }

  PORTILE_DEVICE void load(int thread, std::int64_t row0, std::int64_t col0, std::int64_t k0, step& s) const {
    const std::int64_t channel = k0 + chunk_col(thread) * chunk_values<atom>;
    const auto chunk = [&](const auto* data, std::int64_t stride, bool aligned, std::int64_t row,
                           std::int64_t rows) {
      if (row >= rows) return gpu::words4{};
      return load_chunk<atom>(data + row * stride, channel, this->k, aligned, this->truncate);
    };
    PORTILE_UNROLL
    for (int i = 0; i < own_chunks; ++i) {
      s.a[i] = chunk(this->a, this->a_stride, this->a_aligned, row0 + chunk_row(thread, i), this->m);
      s.b[i] = chunk(this->b, this->b_stride, this->b_aligned, col0 + chunk_row(thread, i), this->n);
    }
    if constexpr (quantised) {
      const std::int64_t row = thread % shape::rows;
      const bool of_a = thread < shape::rows;
      PORTILE_UNROLL
      for (int i = 0; i < shape::scale_blocks; ++i) {
        s.scales[i] = 0.0f;
        if (of_a) {
          if (i == 0 && row0 + row < this->m) s.scales[0] = this->a_sf(row0 + row, k0 / gemm::scale_block);
        } else if (col0 + row < this->n && k0 + i * scale_block < this->k) {
          s.scales[i] = this->b_sf(operands::e2m1 ? col0 + row : (col0 + row) / gemm::scale_block,
                                   k0 / scale_block + i);
        }
      }
    }
  }
  static PORTILE_DEVICE void put(int thread, unsigned char* buffer, const step& s) {
    PORTILE_UNROLL
    for (int i = 0; i < own_chunks; ++i) {
      const int at = chunk_at(chunk_row(thread, i), chunk_col(thread));
      gpu::store16(buffer + at, s.a[i]);
      gpu::store16(buffer + shape::tile_bytes + at, s.b[i]);
    }
    if constexpr (quantised) {
      float* const scales = reinterpret_cast<float*>(buffer + 2 * shape::tile_bytes);
      const bool of_a = thread < shape::rows;
      PORTILE_UNROLL
      for (int i = 0; i < shape::scale_blocks; ++i)
        if (i == 0 || !of_a) scales[thread + i * shape::rows] = s.scales[i];
    }
  }

  template <class Block>
  PORTILE_DEVICE void multiply(const Block& block, const unsigned char* buffer, std::int64_t k0, bool last,
                               sums& part, sums& sum) const {
    shape::multiply(block, buffer, quantised ? part : sum, [&](int read) {
      if constexpr (quantised) {
        const int done = (read + 1) * shape::read_depth;
        if ((k0 + done) % scale_block == 0 || (last && read + 1 == shape::reads))
          promote(block, buffer, (done - 1) / scale_block % shape::scale_blocks, part, sum);
      }
    });
  }
  /// sum += part * scales; part = 0.
  template <class Block>
  PORTILE_DEVICE void promote(const Block& block, const unsigned char* buffer, int scale_at, sums& part,
                              sums& sum) const {
    const float* const a_scales =
        reinterpret_cast<const float*>(buffer + 2 * shape::tile_bytes) + block.wave() / 2 * shape::wave_rows;
    const float* const b_scales = reinterpret_cast<const float*>(buffer + 2 * shape::tile_bytes) +
                                  (1 + scale_at) * shape::rows + block.wave() % 2 * shape::wave_rows;
    float b[shape::atoms];
    PORTILE_UNROLL
    for (int j = 0; j < shape::atoms; ++j)
      b[j] = b_scales[j * atom::cols + atom::result(block.lane(), 0).col];
    PORTILE_UNROLL
    for (int i = 0; i < shape::atoms; ++i) {
      PORTILE_UNROLL
      for (int r = 0; r < atom::results; r += 4) {
        const gpu::words4 a = gpu::load16(a_scales + i * atom::rows + atom::result(block.lane(), r).row);
        PORTILE_UNROLL
        for (int w = 0; w < 4; ++w) {
          PORTILE_UNROLL
          for (int j = 0; j < shape::atoms; ++j) {
            sum.v[i][j][r + w] = ::fmaf(part.v[i][j][r + w] * recipe::missing,
                                        numeric::bits_float(a.w[w]) * b[j], sum.v[i][j][r + w]);
          }
        }
      }
    }
    part.clear();
  }
};

/// a^T * b over rows of both: the factors of gemm.grouped_tn, turned on their way into LDS.
template <class Part, class T>
struct transposed_matrix_product : gpu::tn_operands<T> {
  using atom = typename decltype(Part::for_factor(T{}))::atom;
  static constexpr int values = 8;  ///< that a thread brings of a row
  static constexpr std::int64_t alignment = gpu::load_alignment<T, values>();
  struct shape : wave_tiles<atom> {
    static constexpr std::size_t shared_bytes = 4 * shape::tile_bytes;
  };
  using sums = typename shape::sums;

  /// The tile at (row0, col0) over the rows first .. last - 1 for which own(row).
  template <class Block, class F>
  PORTILE_DEVICE void operator()(const Block& block, std::int64_t row0, std::int64_t col0, std::int64_t first,
                                 std::int64_t last, F own, sums& sum) const {
    sum.clear();
    if constexpr (compiling_for(Part::name) && Block::wave_size == atom::wave) {
      unsigned char* const shared = block.template shared<unsigned char>();
      step next;
      load(block.thread(), row0, col0, first, last, own, next);
      put(block.thread(), shared, next);
      block.barrier();
      int buffer = 0;
      for (std::int64_t k0 = first; k0 < last; k0 += shape::depth) {
        const bool more = k0 + shape::depth < last;
        if (more) load(block.thread(), row0, col0, k0 + shape::depth, last, own, next);
        shape::multiply(block, shared + buffer * 2 * shape::tile_bytes, sum, [](int) {});
        buffer ^= 1;
        if (more) put(block.thread(), shared + buffer * 2 * shape::tile_bytes, next);
        block.barrier();
      }
    } else {
      stop();
    }
  }

 private:
  /// Rows of the problem whose values at one column are one word of a row in LDS.
  static constexpr int packed = 4 / static_cast<int>(sizeof(T)), words = row_bytes / 4;
  struct step {
    std::uint32_t a[values], b[values];
  };
  PORTILE_DEVICE void load(int thread, std::int64_t row0, std::int64_t col0, std::int64_t k0,
                           std::int64_t last, const auto& own, step& s) const {
    const std::int64_t row = k0 + thread % words * packed, col = thread / words * values;
    PORTILE_UNROLL
    for (int i = 0; i < values; ++i) s.a[i] = s.b[i] = 0;
    PORTILE_UNROLL
    for (int r = 0; r < packed; ++r) {
      if (row + r >= last || !own(row + r)) continue;
      bring(this->a + (row + r) * this->a_stride, row0 + col, this->m, this->a_aligned, r, s.a);
      bring(this->b + (row + r) * this->b_stride, col0 + col, this->n, this->b_aligned, r, s.b);
    }
  }
  PORTILE_DEVICE void bring(const T* row, std::int64_t col, std::int64_t cols, bool aligned, int part,
                            std::uint32_t (&to)[values]) const {
    constexpr int loads = values / chunk_values<atom>;
    PORTILE_UNROLL
    for (int l = 0; l < loads; ++l) {
      const gpu::words4 w =
          load_chunk<atom>(row, col + l * chunk_values<atom>, cols, aligned, this->truncate);
      PORTILE_UNROLL
      for (int i = 0; i < chunk_values<atom>; ++i) {
        if constexpr (packed == 1)
          to[l * 4 + i] = w.w[i];
        else
          to[i] |= (w.w[i / 2] >> (i % 2 * 16) & 0xFFFFu) << (part * 16);
      }
    }
  }
  static PORTILE_DEVICE void put(int thread, unsigned char* buffer, const step& s) {
    const int word = thread % words, row = thread / words * values;
    // Every other group of lanes starts with its second row: two groups' words are then in different banks.
    const int turn = thread / words % 2;
    PORTILE_UNROLL
    for (int i = 0; i < values; ++i) {
      const int at = chunk_at(row + (i ^ turn), word / 4) + word % 4 * 4;
      // Values, not places: registers cannot be addressed.
      const std::uint32_t a[2] = {s.a[i], s.a[i ^ 1]}, b[2] = {s.b[i], s.b[i ^ 1]};
      gpu::store4(buffer + at, turn != 0 ? +a[1] : +a[0]);
      gpu::store4(buffer + shape::tile_bytes + at, turn != 0 ? +b[1] : +b[0]);
    }
  }
};

}  // namespace portile::hip
