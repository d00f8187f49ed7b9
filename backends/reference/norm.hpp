#pragma once
// Rows of [num_tokens, hidden] or [batch, num_tokens, hidden] by their flat index, and the RMSNorm of one
// row.
#include <cmath>

#include "backends/reference/space.hpp"

namespace portile::reference {

/// The first matrix of a batch, and the elements from one to the next.
inline tensor first_matrix(tensor t) {
  if (t.rank != 3) return t;
  t.rank = 2;
  t.extents = {t.extent(1), t.extent(2)};
  t.strides = {t.stride(1), t.stride(2)};
  return t;
}
inline std::int64_t batch_stride(const tensor& t) { return t.rank == 3 ? t.stride(0) : 0; }

/// Element j of flat row i, last stride 1. Absent tensors have no rows.
template <class T>
struct batched_rows {
  T* data = nullptr;
  std::int64_t batch_stride = 0, row_stride = 0, tokens = 1;

  batched_rows() = default;
  explicit batched_rows(const tensor& t) {
    if (!t) return;
    data = static_cast<T*>(t.data);
    tokens = t.extent(t.rank - 2);
    row_stride = t.stride(t.rank - 2);
    batch_stride = reference::batch_stride(t);
  }
  KOKKOS_FUNCTION explicit operator bool() const { return data != nullptr; }
  KOKKOS_FUNCTION T& operator()(std::int64_t row, std::int64_t j) const {
    return data[row / tokens * batch_stride + row % tokens * row_stride + j];
  }
};

/// Number of flat rows of x.
inline std::int64_t flat_rows(const tensor& x) {
  return (x.rank == 3 ? x.extent(0) : 1) * x.extent(x.rank - 2);
}

/// The forward pass of one row: `begin` once, then `value` for its elements.
template <class T>
struct rms_norm {
  batched_rows<T> x, residual, residual_out;
  const T* weight;
  float* rstd;
  std::int64_t rstd_batch, rstd_row, tokens, hidden;
  float eps, out_scale;

  template <class P>
  explicit rms_norm(const P& p)
      : x(p.x),
        residual(p.residual),
        residual_out(p.residual_out),
        weight(optional_data<T>(p.weight)),
        rstd(p.rstd ? static_cast<float*>(p.rstd.data) : nullptr),
        rstd_batch(p.rstd.rank == 2 ? p.rstd.stride(0) : 0),
        rstd_row(p.rstd ? p.rstd.stride(p.rstd.rank - 1) : 0),
        tokens(p.x.extent(p.x.rank - 2)),
        hidden(p.x.extent(p.x.rank - 1)),
        eps(static_cast<float>(p.eps)),
        out_scale(static_cast<float>(p.out_scale)) {}

  /// Stores residual_out and rstd; the result is rstd.
  KOKKOS_FUNCTION float begin(std::int64_t row) const {
    double sum = 0;
    for (std::int64_t j = 0; j < hidden; ++j) {
      const T n = with_residual(row, j);
      if (residual_out) residual_out(row, j) = n;
      sum += static_cast<double>(load(n)) * static_cast<double>(load(n));
    }
    const double mean = sum / static_cast<double>(hidden);
    const float r = static_cast<float>(1 / ::sqrt(mean + static_cast<double>(eps)));
    if (rstd) rstd[row / tokens * rstd_batch + row % tokens * rstd_row] = r;
    return r;
  }
  KOKKOS_FUNCTION T value(std::int64_t row, std::int64_t j, float r) const {
    // Where it was stored, n is read back: x may be that memory.
    const float n = load(residual_out ? residual_out(row, j) : with_residual(row, j));
    T v;
    store(v, (n * r) * (weight ? load(weight[j]) * out_scale : out_scale));
    return v;
  }

 private:
  KOKKOS_FUNCTION T with_residual(std::int64_t row, std::int64_t j) const {
    if (!residual) return x(row, j);
    T n;
    store(n, load(x(row, j)) + load(residual(row, j)));
    return n;
  }
};

}  // namespace portile::reference
