#pragma once
// Matrix products as the references do them: tiles of decoded values, every element summed in double, in the
// order of k.
#include <portile/core/numeric/tf32.hpp>
#include <portile/kernels/gemm/operands.hpp>

#include "backends/reference/scales.hpp"
#include "backends/reference/sums.hpp"

namespace portile::reference {

/// A matrix, or a batch of them, of values: element (e, i, k), exact in double.
template <class T>
struct factor {
  const T* data;
  std::int64_t batch_stride, row_stride;
  bool truncate;  ///< f32: tf32 by truncation

  factor(const tensor& t, bool truncate_tf32)
      : data(static_cast<const T*>(t.data)),
        batch_stride(t.rank == 3 ? t.stride(0) : 0),
        row_stride(t.stride(t.rank - 2)),
        truncate(truncate_tf32) {}
  KOKKOS_FUNCTION double operator()(std::int64_t e, std::int64_t i, std::int64_t k) const {
    const T* row = data + e * batch_stride + i * row_stride;
    if constexpr (std::is_same_v<T, float>)
      return truncate ? numeric::to_tf32_truncate(row[k]) : numeric::to_tf32_nearest(row[k]);
    else if constexpr (std::is_same_v<T, numeric::e2m1x2>)
      return numeric::e2m1_to_float(numeric::unpack_e2m1x2(row[k / 2], static_cast<int>(k % 2)));
    else
      return load(row[k]);
  }
};

/// Scales of such a batch; absent: 1.
struct factor_scales {
  scale_reader first;
  std::int64_t batch_bytes = 0;

  explicit factor_scales(const tensor& t) {
    if (!t) return;
    first.data = t.data;
    first.type = t.dtype;
    first.row_stride = t.stride(t.rank - 2);
    first.col_stride = t.stride(t.rank - 1);
    batch_bytes = t.rank == 3 ? t.stride(0) * size_of(t.dtype) : 0;
  }
  KOKKOS_FUNCTION double operator()(std::int64_t e, std::int64_t i, std::int64_t j) const {
    scale_reader matrix = first;
    matrix.data = static_cast<const char*>(first.data) + e * batch_bytes;
    return matrix(i, j);
  }
};

/// a * b^T for tiles of out. The sum over a block of K that shares its scales is taken in the order of k,
/// starting from 0, then multiplied by the product of the two scales; the blocks are added in order. For
/// codes the sum of a block and the product of scales are exact.
template <class A, class B, class Out>
struct nt_product {
  // g++ keeps the inner loop over 32 columns vectorised and unspoilt; with 16 it is four times as slow.
  static constexpr int max_rows = 32, cols = 32;
  static constexpr bool e2m1 = std::is_same_v<B, numeric::e2m1x2>;
  static constexpr std::int64_t block = e2m1 ? gemm::scale_block_e2m1 : gemm::scale_block;  ///< of K

  factor<A> a;
  factor<B> b;
  factor_scales a_sf, b_sf;
  Out* out;
  std::int64_t out_batch_stride, out_row_stride;
  std::int64_t n, k;
  bool accumulate;

  template <class P>
  explicit nt_product(const P& p)
      : a(p.a, p.tf32_rounding == "truncate"),
        b(p.b, p.tf32_rounding == "truncate"),
        a_sf(p.a_sf),
        b_sf(p.b_sf),
        out(static_cast<Out*>(p.out.data)),
        out_batch_stride(p.out.rank == 3 ? p.out.stride(0) : 0),
        out_row_stride(p.out.stride(p.out.rank - 2)),
        n(p.out.extent(p.out.rank - 1)),
        k(p.a.extent(p.a.rank - 1)),
        accumulate(p.accumulate) {}

  /// Columns `col` to `col + cols - 1` (as far as there are) of `rows` <= max_rows rows from `row`; ea, eb:
  /// matrices of the batches.
  KOKKOS_FUNCTION void operator()(std::int64_t ea, std::int64_t row, int rows, std::int64_t eb,
                                  std::int64_t col) const {
    if (k == 0 && accumulate) return;
    const int live_cols = static_cast<int>(n - col < cols ? n - col : cols);
    double total[max_rows][cols] = {};
    double at[max_rows][block], bt[block][cols] = {};
    for (std::int64_t first = 0; first < k; first += block) {
      const int depth = static_cast<int>(k - first < block ? k - first : block);
      for (int i = 0; i < rows; ++i)
        for (int kk = 0; kk < depth; ++kk) at[i][kk] = a(ea, row + i, first + kk);
      for (int j = 0; j < live_cols; ++j)
        for (int kk = 0; kk < depth; ++kk) bt[kk][j] = b(eb, col + j, first + kk);
      double scale_b[cols] = {};
      for (int j = 0; j < live_cols; ++j)
        scale_b[j] = b_sf(eb, e2m1 ? col + j : (col + j) / gemm::scale_block, first / block);
      for (int i = 0; i < rows; ++i) {
        double sum[cols] = {};
        for (int kk = 0; kk < depth; ++kk)
          for (int j = 0; j < cols; ++j) sum[j] += at[i][kk] * bt[kk][j];
        const double scale_a = a_sf(ea, row + i, first / gemm::scale_block);
        for (int j = 0; j < cols; ++j) total[i][j] += sum[j] * (scale_a * scale_b[j]);
      }
    }
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < live_cols; ++j) {
        Out& to = out[ea * out_batch_stride + (row + i) * out_row_stride + col + j];
        store_sum(to, accumulate ? total[i][j] + static_cast<double>(load(to)) : total[i][j]);
      }
  }
};

/// Calls f(A{}, B{}, Out{}) with the types of a product.
template <class P, class F>
void visit_product(const P& p, F f) {
  using numeric::bf16, numeric::e4m3, numeric::e2m1x2;
  visit<float, bf16>(p.out.dtype, [&](auto out) {
    switch (p.a.dtype) {
      case dtype::bf16:
        return f(bf16{}, bf16{}, out);
      case dtype::f32:
        return f(float{}, float{}, out);
      default:
        visit<e4m3, e2m1x2>(p.b.dtype, [&](auto b) { f(e4m3{}, b, out); });
    }
  });
}

/// Which rows belong to which expert, in both forms of the grouped operations. Broken data never leads
/// outside 0 .. rows - 1.
struct expert_rows {
  const std::int32_t *start, *end, *live, *masked;
  std::int64_t rows;  ///< M, or M_max

  struct range {
    std::int64_t begin = 0, end = 0;
    KOKKOS_FUNCTION bool has(std::int64_t row) const { return row >= begin && row < end; }
  };
  KOKKOS_FUNCTION static std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
    return x < low ? low : x > high ? high : x;
  }
  KOKKOS_FUNCTION range operator()(std::int64_t e) const {
    if (masked) return {0, clamp(masked[e], 0, rows)};
    const std::int64_t first = clamp(start[e], 0, rows), last = clamp(end[e], first, rows);
    return {first, live ? first + clamp(live[e], 0, last - first) : last};
  }
  /// A row of segment e that an expert before e has too is that expert's. In the masked form there is none.
  KOKKOS_FUNCTION bool overlaps_earlier(std::int64_t e) const {
    const range mine = (*this)(e);
    for (std::int64_t other = 0; other < e && !masked; ++other) {
      const range r = (*this)(other);
      if (r.begin < mine.end && mine.begin < r.end && r.begin < r.end && mine.begin < mine.end) return true;
    }
    return false;
  }
  KOKKOS_FUNCTION bool taken_by_earlier(std::int64_t e, std::int64_t row) const {
    for (std::int64_t other = 0; other < e; ++other)
      if ((*this)(other).has(row)) return true;
    return false;
  }
  /// f(row, count) for runs of at most `max_count` rows that are expert e's own.
  template <class F>
  KOKKOS_FUNCTION void for_each_run(std::int64_t e, int max_count, const F& f) const {
    const range r = (*this)(e);
    const bool shared = overlaps_earlier(e);
    for (std::int64_t row = r.begin; row < r.end;) {
      int count = 0;
      while (count < max_count && row + count < r.end && !(shared && taken_by_earlier(e, row + count)))
        ++count;
      if (count > 0) f(row, count);
      row += count > 0 ? count : 1;
    }
  }
  /// Reports what the data breaks, by expert.
  KOKKOS_FUNCTION void report(std::int64_t e, const trap_sink& trap) const {
    if (masked) {
      if (masked[e] < 0 || masked[e] > rows) trap.raise(gemm::rule_masked, e);
      return;
    }
    if (start[e] < 0 || start[e] > end[e] || end[e] > rows) trap.raise(gemm::rule_segment, e);
    if (live && (live[e] < 0 || live[e] > static_cast<std::int64_t>(end[e]) - start[e]))
      trap.raise(gemm::rule_live, e);
    if (overlaps_earlier(e)) trap.raise(gemm::rule_overlap, e);
  }
};

/// `masked_m` may be absent for good: grouped_tn has no masked form.
inline expert_rows make_expert_rows(const tensor& expert_start, const tensor& expert_end, const tensor& live,
                                    const tensor& masked_m, std::int64_t rows) {
  const auto i32 = [](const tensor& t) { return static_cast<const std::int32_t*>(t.data); };
  return {i32(expert_start), i32(expert_end), i32(live), i32(masked_m), rows};
}

}  // namespace portile::reference
