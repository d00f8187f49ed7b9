#pragma once
// Products by fp32 multiply-adds, a tile of the result a block: any size, any pitch, any address. What
// gemm.nt, gemm.grouped_nt and gemm.grouped_tn share.
#include <portile/core/numeric/tf32.hpp>
#include <portile/kernels/gemm/operands.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {

/// Values that a thread brings at once.
inline constexpr int slice_values = 8;

/// A block computes rows x cols results, a thread own_rows x own_cols of them. Factors lie in shared memory
/// by channel.
template <int Columns>
struct tile {
  static constexpr int threads = 256, rows = 128, depth = 16, own_rows = 8;
  static constexpr int cols = Columns, own_cols = cols / 16;
  static constexpr int a_pitch = rows + 4, b_pitch = cols + 4;  ///< 16-byte rows, no bank conflicts
  static constexpr std::size_t shared_bytes = depth * (a_pitch + b_pitch) * sizeof(float);

  struct sums {
    float v[own_rows][own_cols];
    PORTILE_DEVICE void clear() {
      PORTILE_UNROLL
      for (int i = 0; i < own_rows; ++i) {
        PORTILE_UNROLL
        for (int j = 0; j < own_cols; ++j) v[i][j] = 0.0f;
      }
    }
  };

  /// A thread's rows and columns are four in each half (or quarter ...) of the tile: that spreads a wave's
  /// reads over all banks. The place of its first one, and where its i-th one is.
  static PORTILE_DEVICE int row_place(int thread) { return thread / 16 * 4; }
  static PORTILE_DEVICE int col_place(int thread) { return thread % 16 * 4; }
  static PORTILE_DEVICE int index(int place, int i) { return i / 4 * 64 + place + i % 4; }

  template <int count>
  static PORTILE_DEVICE void load_own(const float* from, int place, float (&v)[count]) {
    PORTILE_UNROLL
    for (int i = 0; i < count; i += 4) {
      const words4 w = load16(from + index(place, i));
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) v[i + j] = numeric::bits_float(w.w[j]);
    }
  }

  /// to += a * b over the channels in shared memory.
  static PORTILE_DEVICE void multiply(const float* a_tile, const float* b_tile, int thread, sums& to) {
    PORTILE_UNROLL
    for (int k = 0; k < depth; ++k) {
      float a[own_rows], b[own_cols];
      load_own<own_rows>(a_tile + k * a_pitch, row_place(thread), a);
      load_own<own_cols>(b_tile + k * b_pitch, col_place(thread), b);
      PORTILE_UNROLL
      for (int i = 0; i < own_rows; ++i) {
        PORTILE_UNROLL
        for (int j = 0; j < own_cols; ++j) to.v[i][j] = ::fmaf(a[i], b[j], to.v[i][j]);
      }
    }
  }

  /// f(row, column, sum) for the thread's results that lie before row `rows_end` and column `cols_end`.
  template <class F>
  static PORTILE_DEVICE void each(int thread, std::int64_t row0, std::int64_t rows_end, std::int64_t col0,
                                  std::int64_t cols_end, const sums& s, F f) {
    PORTILE_UNROLL
    for (int i = 0; i < own_rows; ++i) {
      const std::int64_t m = row0 + index(row_place(thread), i);
      if (m >= rows_end) continue;
      PORTILE_UNROLL
      for (int j = 0; j < own_cols; ++j) {
        const std::int64_t n = col0 + index(col_place(thread), j);
        if (n < cols_end) f(m, n, s.v[i][j]);
      }
    }
  }
};

/// Eight values of row `row` from column `k` on; zeros where there are none. f32 becomes tf32.
template <class T>
PORTILE_DEVICE void load_slice(const T* data, std::int64_t stride, bool aligned, bool truncate,
                               std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t columns,
                               float (&v)[slice_values]) {
  PORTILE_UNROLL
  for (int i = 0; i < slice_values; ++i) v[i] = 0.0f;
  if (row >= rows) return;
  const T* start = data + row * stride;
  if (aligned && k + slice_values <= columns) {
    load_values<T, slice_values>(start, k, v);
  } else {
    PORTILE_UNROLL
    for (int i = 0; i < slice_values; ++i)
      if (k + i < columns) v[i] = load_value(start, k + i);
  }
  if constexpr (std::is_same_v<T, float>) {
    PORTILE_UNROLL
    for (int i = 0; i < slice_values; ++i)
      v[i] = truncate ? numeric::to_tf32_truncate(v[i]) : numeric::to_tf32_nearest(v[i]);
  }
}

/// Where a product goes.
struct tile_result {
  void* data;
  std::int64_t stride;
  dtype type;
  bool accumulate;

  PORTILE_DEVICE void store(std::int64_t row, std::int64_t col, float sum) const {
    const std::int64_t at = row * stride + col;
    if (type == dtype::f32) {
      float& to = static_cast<float*>(data)[at];
      to = accumulate ? sum + to : sum;
    } else {
      numeric::bf16& to = static_cast<numeric::bf16*>(data)[at];
      to = numeric::to_bf16(accumulate ? sum + numeric::to_float(to) : sum);
    }
  }
};

/// The factors of a * b^T. Quantised ones are summed without their scales over each scale block, then scaled
/// and added.
template <class A, class B>
struct nt_operands {
  static constexpr bool quantised = std::is_same_v<A, numeric::e4m3>;
  static constexpr bool e2m1 = std::is_same_v<B, numeric::e2m1x2>;
  static constexpr int scale_block = static_cast<int>(e2m1 ? gemm::scale_block_e2m1 : gemm::scale_block);

  const A* a;
  const B* b;
  std::int64_t a_stride, b_stride;
  std::int64_t m, n, k;  ///< rows from m on and columns from n on are not there
  scale_reader a_sf, b_sf;
  bool truncate, a_aligned, b_aligned;
};

/// a * b^T by multiply-adds.
template <class A, class B>
struct nt_product : nt_operands<A, B> {
  using operands = nt_operands<A, B>;
  using operands::a, operands::b, operands::a_stride, operands::b_stride, operands::m, operands::n,
      operands::k, operands::a_sf, operands::b_sf, operands::truncate, operands::a_aligned,
      operands::b_aligned;
  using operands::quantised, operands::e2m1, operands::scale_block;
  /// Quantised: sums of a scale block beside those of all, so that a thread has half as many results.
  using shape = tile<quantised ? 64 : tile_columns>;
  using sums = typename shape::sums;
  /// Bytes that aligned rows of the factors start at multiples of.
  static constexpr std::int64_t a_alignment = load_alignment<A, slice_values>(),
                                b_alignment = load_alignment<B, slice_values>();
  /// The tile that the work-th block takes.
  static PORTILE_DEVICE std::int64_t tile_of(std::int64_t work, std::int64_t /*tiles*/) { return work; }

  /// The tile at (row0, col0).
  template <class Block>
  PORTILE_DEVICE void operator()(const Block& block, std::int64_t row0, std::int64_t col0, sums& sum) const {
    float* const a_tile = block.template shared<float>();
    float* const b_tile = a_tile + shape::depth * shape::a_pitch;
    // Loading: a thread brings eight channels of one row of each factor.
    const int a_row = block.thread() % shape::rows, a_k = block.thread() / shape::rows * slice_values;
    const int b_row = block.thread() % shape::cols, b_k = block.thread() / shape::cols * slice_values;

    sums part;
    sum.clear();
    if constexpr (quantised) part.clear();
    float a_next[slice_values] = {}, b_next[slice_values] = {};
    const auto load = [&](std::int64_t k0) {
      load_slice(a, a_stride, a_aligned, truncate, row0 + a_row, m, k0 + a_k, k, a_next);
      if (b_k < shape::depth)
        load_slice(b, b_stride, b_aligned, truncate, col0 + b_row, n, k0 + b_k, k, b_next);
    };
    load(0);
    for (std::int64_t k0 = 0; k0 < k; k0 += shape::depth) {
      PORTILE_UNROLL
      for (int i = 0; i < slice_values; ++i) a_tile[(a_k + i) * shape::a_pitch + a_row] = a_next[i];
      if (b_k < shape::depth) {
        PORTILE_UNROLL
        for (int i = 0; i < slice_values; ++i) b_tile[(b_k + i) * shape::b_pitch + b_row] = b_next[i];
      }
      block.barrier();
      if (k0 + shape::depth < k) load(k0 + shape::depth);  // on its way while this step computes
      if constexpr (quantised) {
        shape::multiply(a_tile, b_tile, block.thread(), part);
        const std::int64_t done = k0 + shape::depth;
        if (done % scale_block == 0 || done >= k) promote(block.thread(), row0, col0, k0, part, sum);
      } else {
        shape::multiply(a_tile, b_tile, block.thread(), sum);
      }
      block.barrier();
    }
  }

 private:
  /// sum += part * scales of the block that channel `channel` lies in; part = 0.
  PORTILE_DEVICE void promote(int thread, std::int64_t row0, std::int64_t col0, std::int64_t channel,
                              sums& part, sums& sum) const {
    float b_scale[shape::own_cols];
    PORTILE_UNROLL
    for (int j = 0; j < shape::own_cols; ++j) {
      const std::int64_t col = col0 + shape::index(shape::col_place(thread), j);
      b_scale[j] = col < n ? b_sf(e2m1 ? col : col / gemm::scale_block, channel / scale_block) : 0.0f;
    }
    PORTILE_UNROLL
    for (int i = 0; i < shape::own_rows; ++i) {
      const std::int64_t row = row0 + shape::index(shape::row_place(thread), i);
      const float a_scale = row < m ? a_sf(row, channel / gemm::scale_block) : 0.0f;
      PORTILE_UNROLL
      for (int j = 0; j < shape::own_cols; ++j)
        sum.v[i][j] = ::fmaf(part.v[i][j], a_scale * b_scale[j], sum.v[i][j]);
    }
    part.clear();
  }
};

/// The product of matrices a and b (the last two dimensions), at the first of a batch.
template <class Product, class P>
Product make_product(const P& p) {
  const auto pitch = [](const tensor& t) { return t.stride(t.rank - 2); };
  const auto scales = [](const tensor& t) {
    scale_reader r;
    if (!t) return r;
    r.data = t.data;
    r.type = t.dtype;
    r.row_stride = t.stride(t.rank - 2);
    r.col_stride = t.stride(t.rank - 1);
    return r;
  };
  const auto aligned = [](const tensor& t, std::int64_t bytes) {
    return rows_aligned(t, bytes) &&
           (t.rank < 3 || t.extent(0) <= 1 || t.stride(0) * size_of(t.dtype) % bytes == 0);
  };
  Product q{};
  q.a = static_cast<decltype(q.a)>(p.a.data);
  q.b = static_cast<decltype(q.b)>(p.b.data);
  q.a_stride = pitch(p.a);
  q.b_stride = pitch(p.b);
  q.m = p.out.extent(p.out.rank - 2);
  q.n = p.out.extent(p.out.rank - 1);
  q.k = p.a.extent(p.a.rank - 1);
  q.a_sf = scales(p.a_sf);
  q.b_sf = scales(p.b_sf);
  q.truncate = p.tf32_rounding == "truncate";
  q.a_aligned = aligned(p.a, Product::a_alignment);
  q.b_aligned = aligned(p.b, Product::b_alignment);
  return q;
}

/// Calls f(A{}, B{}) with the types of the factors.
template <class P, class F>
void visit_factors(const P& p, F f) {
  using numeric::bf16, numeric::e2m1x2, numeric::e4m3;
  if (p.a.dtype == dtype::e4m3) return visit<e4m3, e2m1x2>(p.b.dtype, [&](auto b) { f(e4m3{}, b); });
  visit<bf16, float>(p.a.dtype, [&](auto a) { f(a, a); });
}

}  // namespace portile::gpu
