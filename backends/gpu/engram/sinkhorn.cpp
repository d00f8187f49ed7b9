// The row operations of the Engram-Sinkhorn optimiser, on y = (row_scale * M) * col_scale.
#include <portile/kernels/engram/sinkhorn_finalize.hpp>
#include <portile/kernels/engram/sinkhorn_step.hpp>

#include "backends/gpu/column_sums.hpp"

namespace portile::gpu {
namespace {

struct scaled_matrix {
  const float *matrix, *row_scale, *col_scale;
  std::int64_t row_stride, rows, cols;

  PORTILE_DEVICE float operator()(std::int64_t n, std::int64_t d) const {
    return row_scale[n] * matrix[n * row_stride + d] * col_scale[d];
  }
};

template <class P>
scaled_matrix scaled_matrix_of(const P& p) {
  return {static_cast<const float*>(p.matrix.data),
          static_cast<const float*>(p.row_scale.data),
          static_cast<const float*>(p.col_scale.data),
          p.matrix.stride(0),
          p.matrix.extent(0),
          p.matrix.extent(1)};
}

/// Norms of R rows held in registers, by a wave or by the block. `scratch` as reduce_sums wants it, for
/// double.
template <bool whole_block, class Block, int R, int N>
PORTILE_DEVICE void row_norms(const Block& block, const float (&y)[R][N], float (&norm)[R], double* scratch) {
  float sums[R] = {};
  bool safe = true;
  PORTILE_UNROLL
  for (int r = 0; r < R; ++r) {
    PORTILE_UNROLL
    for (int i = 0; i < N; ++i) sums[r] = ::fmaf(y[r][i], y[r][i], sums[r]);
  }
  reduce_sums<whole_block>(block, sums, reinterpret_cast<float*>(scratch));
  PORTILE_UNROLL
  for (int r = 0; r < R; ++r) {
    safe = safe && safe_sum_of_squares(sums[r]);
    norm[r] = ::sqrtf(sums[r]);
  }
  if (safe) return;
  double exact[R] = {};
  PORTILE_UNROLL
  for (int r = 0; r < R; ++r) {
    PORTILE_UNROLL
    for (int i = 0; i < N; ++i) exact[r] += static_cast<double>(y[r][i]) * static_cast<double>(y[r][i]);
  }
  if constexpr (whole_block) block.barrier();
  reduce_sums<whole_block>(block, exact, scratch);
  PORTILE_UNROLL
  for (int r = 0; r < R; ++r) norm[r] = static_cast<float>(::sqrt(exact[r]));
}

/// The norm of row n, read from memory by the block.
template <class Block>
PORTILE_DEVICE float row_norm(const Block& block, const scaled_matrix& y, std::int64_t n, double* scratch) {
  double sum[1] = {};
  for (std::int64_t d = block.thread(); d < y.cols; d += Block::threads) {
    const double v = y(n, d);
    sum[0] += v * v;
  }
  reduce_sums<true>(block, sum, scratch);
  return static_cast<float>(::sqrt(sum[0]));
}

/// The rows of partial sum `part` of `parts`.
struct row_range {
  std::int64_t begin, end;
  PORTILE_DEVICE row_range(std::int64_t rows, std::int64_t part, std::int64_t parts)
      : begin(rows * part / parts), end(rows * (part + 1) / parts) {}
};

struct step_params {
  scaled_matrix y;
  float *row_scale, *row_norm, *partial;
  float eps;
  std::int64_t parts;
};

/// The row's share in the sums, and its new scale.
PORTILE_DEVICE float finish_row(const step_params& p, std::int64_t n, float scale, float norm, bool writes) {
  // A row of zeros keeps its scale.
  const float inv = norm == 0 ? 0.0f : 1.0f / (norm + p.eps);
  if (writes) {
    p.row_norm[n] = norm;
    if (norm != 0) p.row_scale[n] = scale * inv;
  }
  return inv;
}

/// Short rows: a wave takes several at a time.
template <int quads, int R>
struct step_by_waves {
  static constexpr int threads = 256, min_blocks = 2;
  using params = step_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t part = block.index(); part < p.parts; part += block.grid()) {
      float scales[4 * quads] = {}, sums[4 * quads] = {};
      PORTILE_UNROLL
      for (int q = 0; q < quads; ++q)
        if (col(block, q) < p.y.cols) load_values<float, 4>(p.y.col_scale, col(block, q), scales + 4 * q);
      const row_range range(p.y.rows, part, p.parts);
      for (std::int64_t first = range.begin + block.wave() * R; first < range.end;
           first += Block::num_waves * R) {
        float y[R][4 * quads] = {}, row_scale[R] = {}, norm[R];
        PORTILE_UNROLL
        for (int r = 0; r < R; ++r) {
          if (first + r >= range.end) continue;
          row_scale[r] = p.row_scale[first + r];
          PORTILE_UNROLL
          for (int q = 0; q < quads; ++q)
            if (col(block, q) < p.y.cols)
              load_values<float, 4>(p.y.matrix + (first + r) * p.y.row_stride, col(block, q), y[r] + 4 * q);
        }
        PORTILE_UNROLL
        for (int r = 0; r < R; ++r) {
          PORTILE_UNROLL
          for (int i = 0; i < 4 * quads; ++i) y[r][i] = row_scale[r] * y[r][i] * scales[i];
        }
        row_norms<false>(block, y, norm, nullptr);
        PORTILE_UNROLL
        for (int r = 0; r < R; ++r) {
          const bool live = first + r < range.end;
          const float inv = finish_row(p, first + r, row_scale[r], norm[r], live && block.lane() == 0);
          PORTILE_UNROLL
          for (int i = 0; i < 4 * quads; ++i) {
            const float z = y[r][i] * inv;
            sums[i] = live ? ::fmaf(z, z, sums[i]) : sums[i];
          }
        }
      }
      // The waves' sums, in their order.
      auto* all = block.template shared<float>();
      PORTILE_UNROLL
      for (int q = 0; q < quads; ++q)
        if (col(block, q) < p.y.cols)
          store_values<float, 4>(all + block.wave() * p.y.cols, col(block, q), sums + 4 * q);
      block.barrier();
      for (std::int64_t d = block.thread(); d < p.y.cols; d += threads) {
        float sum = all[d];
        for (int w = 1; w < Block::num_waves; ++w) sum += all[w * p.y.cols + d];
        p.partial[part * p.y.cols + d] = sum;
      }
      block.barrier();
    }
  }

 private:
  template <class Block>
  static PORTILE_DEVICE std::int64_t col(const Block& block, int q) {
    return (q * Block::wave_size + block.lane()) * 4;
  }
};

/// Longer rows: the block takes one, while the next one is on its way.
template <int quads>
struct step_by_blocks {
  static constexpr int threads = 512, min_blocks = quads < 4 ? 2 : 1;
  using params = step_params;
  static constexpr std::size_t scratch_bytes = 2 * threads / 32 * sizeof(double);

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* scratch = block.template shared<double>();
    auto* scales = block.template shared<float>(scratch_bytes);
    // Each thread reads back what it wrote itself.
    PORTILE_UNROLL
    for (int q = 0; q < quads; ++q)
      if (col(block, q) < p.y.cols) store16(scales + col(block, q), load16(p.y.col_scale + col(block, q)));
    for (std::int64_t part = block.index(); part < p.parts; part += block.grid()) {
      float sums[4 * quads] = {}, next[4 * quads] = {}, next_scale = 0;
      const row_range range(p.y.rows, part, p.parts);
      int turn = 0;
      if (range.begin < range.end) load(block, p, range.begin, next, next_scale);
      for (std::int64_t n = range.begin; n < range.end; ++n) {
        float y[1][4 * quads], norm[1];
        const float row_scale = next_scale;
        PORTILE_UNROLL
        for (int q = 0; q < quads; ++q) {
          float s[4] = {};
          if (col(block, q) < p.y.cols) load_values<float, 4>(scales, col(block, q), s);
          PORTILE_UNROLL
          for (int j = 0; j < 4; ++j) y[0][4 * q + j] = row_scale * next[4 * q + j] * s[j];
        }
        if (n + 1 < range.end) load(block, p, n + 1, next, next_scale);
        row_norms<true>(block, y, norm, scratch + turn * Block::num_waves);
        turn ^= 1;
        const float inv = finish_row(p, n, row_scale, norm[0], block.thread() == 0);
        PORTILE_UNROLL
        for (int i = 0; i < 4 * quads; ++i) {
          const float z = y[0][i] * inv;
          sums[i] = ::fmaf(z, z, sums[i]);
        }
      }
      PORTILE_UNROLL
      for (int q = 0; q < quads; ++q)
        if (col(block, q) < p.y.cols)
          store_values<float, 4>(p.partial + part * p.y.cols, col(block, q), sums + 4 * q);
    }
  }

 private:
  template <class Block>
  static PORTILE_DEVICE std::int64_t col(const Block& block, int q) {
    return (q * threads + block.thread()) * 4;
  }
  template <class Block>
  static PORTILE_DEVICE void load(const Block& block, const params& p, std::int64_t n, float (&v)[4 * quads],
                                  float& scale) {
    PORTILE_UNROLL
    for (int q = 0; q < quads; ++q)
      if (col(block, q) < p.y.cols)
        load_values<float, 4>(p.y.matrix + n * p.y.row_stride, col(block, q), v + 4 * q);
    scale = p.row_scale[n];
  }
};

// Any width and alignment, in three kernels: norms, sums over the columns, scales.
struct step_norms {
  static constexpr int threads = 256;
  using params = step_params;
  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t n = block.index(); n < p.y.rows; n += block.grid()) {
      const float norm = row_norm(block, p.y, n, block.template shared<double>());
      if (block.thread() == 0) p.row_norm[n] = norm;
      block.barrier();
    }
  }
};
struct step_columns {
  static constexpr int threads = 256;
  struct params : step_params {
    divider tiles;
  };
  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t b = block.index(); b < p.parts * p.tiles.value(); b += block.grid()) {
      const std::int64_t part = p.tiles.quotient(b);
      const std::int64_t d = (b - part * p.tiles.value()) * threads + block.thread();
      if (d >= p.y.cols) continue;
      const row_range range(p.y.rows, part, p.parts);
      float sum = 0;
      for (std::int64_t n = range.begin; n < range.end; ++n) {
        const float norm = p.row_norm[n];
        const float z = norm == 0 ? 0.0f : p.y(n, d) * (1.0f / (norm + p.eps));
        sum = ::fmaf(z, z, sum);
      }
      p.partial[part * p.y.cols + d] = sum;
    }
  }
};
struct step_scales {
  static constexpr int threads = 256;
  using params = step_params;
  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t n = block.index() * threads + block.thread(); n < p.y.rows; n += block.grid() * threads)
      finish_row(p, n, p.row_scale[n], p.row_norm[n], true);
  }
};

struct sinkhorn_step_simt {
  /// Two partial rows for each multiprocessor of the H200, whatever the device.
  static constexpr std::int64_t max_parts = 264, rows_a_part = 32;

  static std::int64_t parts(const engram::sinkhorn_step& p) {
    return std::min(max_parts, numeric::ceil_div(p.matrix.extent(0), rows_a_part));
  }
  static std::uint64_t workspace(const portile_device_info&, const engram::sinkhorn_step& p) {
    return static_cast<std::uint64_t>(parts(p) * p.matrix.extent(1)) * sizeof(float);
  }
  static void launch(const context& c, const engram::sinkhorn_step& p) {
    const step_params k{scaled_matrix_of(p),
                        static_cast<float*>(p.row_scale.data),
                        static_cast<float*>(p.row_norm.data),
                        static_cast<float*>(c.call.workspace),
                        static_cast<float>(p.eps),
                        parts(p)};
    const std::int64_t cols = k.y.cols, wave = c.call.device->wave_size;
    const bool aligned = rows_aligned(p.matrix, 16) && rows_aligned(p.col_scale, 16);
    if (cols == 0) {
      // Rows of no elements have norm 0.
      gpu::launch<step_norms>(c, k.y.rows, 1024, k);
      return;
    }
    if (aligned && cols <= 8 * wave)
      by_waves<step_by_waves<2, 4>>(c, k);
    else if (aligned && cols <= 32 * wave)
      by_waves<step_by_waves<8, 1>>(c, k);
    else if (aligned && cols <= 2048)
      by_blocks<step_by_blocks<1>>(c, k);
    else if (aligned && cols <= 4096)
      by_blocks<step_by_blocks<2>>(c, k);
    else if (aligned && cols <= 6144)
      by_blocks<step_by_blocks<3>>(c, k);
    else if (aligned && cols <= 8192)
      by_blocks<step_by_blocks<4>>(c, k);
    else
      general(c, k);
    add_partial_rows<float>::launch(c, partial_rows(k.partial, cols, k.parts, cols), 1, 0,
                                    static_cast<float*>(p.col_sumsq.data), 0, false);
  }

 private:
  template <class K>
  static void by_waves(const context& c, const step_params& k) {
    const auto waves = static_cast<std::size_t>(K::threads / c.call.device->wave_size);
    gpu::launch<K>(c, k.parts, waves * static_cast<std::size_t>(k.y.cols) * sizeof(float), k);
  }
  template <class K>
  static void by_blocks(const context& c, const step_params& k) {
    gpu::launch<K>(c, k.parts, K::scratch_bytes + static_cast<std::size_t>(k.y.cols) * sizeof(float), k);
  }
  static void general(const context& c, const step_params& k) {
    const std::int64_t tiles = numeric::ceil_div(k.y.cols, step_columns::threads);
    gpu::launch<step_norms>(c, k.y.rows, 1024, k);
    gpu::launch<step_columns>(c, k.parts * tiles, 0, {k, divider(tiles, k.parts * tiles)});
    gpu::launch<step_scales>(c, numeric::ceil_div(k.y.rows, step_scales::threads), 0, k);
  }
};

struct finalize_params {
  scaled_matrix y;
  float* out;
  std::int64_t out_stride;
  float eps, alpha;

  PORTILE_DEVICE float factor(float norm) const { return norm == 0 ? 0.0f : alpha / (norm + eps); }
};

/// A row a wave, or a block.
template <bool whole_block, int quads>
struct finalize_rows {
  static constexpr int threads = 256;
  using params = finalize_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    constexpr int lanes = whole_block ? threads : Block::wave_size, rows = threads / lanes;
    const int lane = whole_block ? block.thread() : block.lane();
    for (std::int64_t n = block.index() * rows + (whole_block ? 0 : block.wave()); n < p.y.rows;
         n += block.grid() * rows) {
      float y[1][4 * quads] = {}, scales[4 * quads] = {}, norm[1];
      PORTILE_UNROLL
      for (int q = 0; q < quads; ++q) {
        const std::int64_t d = (q * lanes + lane) * 4;
        if (d >= p.y.cols) continue;
        load_values<float, 4>(p.y.matrix + n * p.y.row_stride, d, y[0] + 4 * q);
        load_values<float, 4>(p.y.col_scale, d, scales + 4 * q);
      }
      const float row_scale = p.y.row_scale[n];
      PORTILE_UNROLL
      for (int i = 0; i < 4 * quads; ++i) y[0][i] = row_scale * y[0][i] * scales[i];
      row_norms<whole_block>(block, y, norm, block.template shared<double>());
      const float factor = p.factor(norm[0]);
      PORTILE_UNROLL
      for (int i = 0; i < 4 * quads; ++i) y[0][i] *= factor;
      PORTILE_UNROLL
      for (int q = 0; q < quads; ++q) {
        const std::int64_t d = (q * lanes + lane) * 4;
        if (d < p.y.cols) store_values<float, 4>(p.out + n * p.out_stride, d, y[0] + 4 * q);
      }
      if constexpr (whole_block) block.barrier();
    }
  }
};

struct finalize_any {
  static constexpr int threads = 256;
  using params = finalize_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t n = block.index(); n < p.y.rows; n += block.grid()) {
      const float factor = p.factor(row_norm(block, p.y, n, block.template shared<double>()));
      for (std::int64_t d = block.thread(); d < p.y.cols; d += threads)
        p.out[n * p.out_stride + d] = p.y(n, d) * factor;
      block.barrier();
    }
  }
};

struct sinkhorn_finalize_simt {
  static void launch(const context& c, const engram::sinkhorn_finalize& p) {
    const finalize_params k{scaled_matrix_of(p), static_cast<float*>(p.out.data), p.out.stride(0),
                            static_cast<float>(p.eps), static_cast<float>(p.alpha)};
    const std::int64_t cols = k.y.cols, wave = c.call.device->wave_size;
    const bool aligned = cols % 4 == 0 && rows_aligned(p.matrix, 16) && rows_aligned(p.col_scale, 16) &&
                         rows_aligned(p.out, 16);
    if (cols == 0) return;
    if (aligned && cols <= 8 * wave)
      start<finalize_rows<false, 2>>(c, k, wave);
    else if (aligned && cols <= 2048)
      start<finalize_rows<true, 2>>(c, k, finalize_any::threads);
    else if (aligned && cols <= 5120)
      start<finalize_rows<true, 5>>(c, k, finalize_any::threads);
    else if (aligned && cols <= 8192)
      start<finalize_rows<true, 8>>(c, k, finalize_any::threads);
    else
      start<finalize_any>(c, k, finalize_any::threads);
  }

 private:
  template <class K>
  static void start(const context& c, const finalize_params& k, std::int64_t lanes) {
    gpu::launch<K>(c, numeric::ceil_div(k.y.rows, K::threads / lanes), 1024, k);
  }
};

}  // namespace

extern const portile_implementation engram_sinkhorn_step_simt, engram_sinkhorn_finalize_simt;
const portile_implementation engram_sinkhorn_step_simt =
    make_simt<engram::sinkhorn_step, sinkhorn_step_simt>();
const portile_implementation engram_sinkhorn_finalize_simt =
    make_simt<engram::sinkhorn_finalize, sinkhorn_finalize_simt>();

}  // namespace portile::gpu
