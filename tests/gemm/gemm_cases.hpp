#pragma once
// Operands and an independent product for the gemm tests: whole numbers with power-of-two scales, so that
// every order of summation gives the same bits.
#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/e2m1.hpp>
#include <portile/core/numeric/e4m3.hpp>
#include <portile/core/numeric/integer.hpp>
#include <portile/core/numeric/ue8m0.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

namespace portile::test {

/// A factor with its exact values: element (e, i, k) of `values` is what the scaled code stands for.
struct exact_factor {
  tensor codes, scales;
  std::vector<double> values;
  std::int64_t rows = 0, k = 0;
  double at(std::int64_t e, std::int64_t i, std::int64_t kk) const {
    return values[static_cast<std::size_t>((e * rows + i) * k + kk)];
  }
};

inline void put_code(const tensor& t, std::int64_t offset, std::int64_t k, double v) {
  const auto f = static_cast<float>(v);
  switch (t.dtype) {
    case dtype::f32:
      static_cast<float*>(t.data)[offset + k] = f;
      return;
    case dtype::bf16:
      static_cast<numeric::bf16*>(t.data)[offset + k] = numeric::to_bf16(f);
      return;
    case dtype::e4m3:
      static_cast<numeric::e4m3*>(t.data)[offset + k] = numeric::to_e4m3(f);
      return;
    default: {
      auto& pair = static_cast<numeric::e2m1x2*>(t.data)[offset + k / 2];
      pair = k % 2 == 0 ? numeric::pack_e2m1x2(numeric::to_e2m1(f), 0)
                        : numeric::pack_e2m1x2(pair.low(), numeric::to_e2m1(f));
    }
  }
}

/// batch = 0: a matrix. `padding`: extra elements between rows. block_rows = 0: no scales; else f32,
/// column-major if asked for.
inline exact_factor make_factor(memory& m, dtype type, std::int64_t batch, std::int64_t rows, std::int64_t k,
                                unsigned seed, std::int64_t padding = 0, std::int64_t block_rows = 0,
                                std::int64_t block_cols = 0, bool col_major = false) {
  exact_factor f;
  f.rows = rows;
  f.k = k;
  const std::int64_t count = batch > 0 ? batch : 1, width = stored_extent(type, k), pitch = width + padding;
  f.codes = batch > 0 ? m.make(type, {batch, rows, width}, {rows * pitch, pitch, 1})
                      : m.make(type, {rows, width}, {pitch, 1});
  std::mt19937 rng(seed);
  for (std::int64_t e = 0; e < count; ++e)
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t kk = 0; kk < k; ++kk) {
        const double v = static_cast<double>(rng() % 4 + 1) * (rng() % 2 ? 1 : -1);
        f.values.push_back(v);
        put_code(f.codes, (e * rows + i) * pitch, kk, v);
      }
  if (block_rows == 0) return f;
  const std::int64_t sr = numeric::ceil_div(rows, block_rows), sc = numeric::ceil_div(k, block_cols);
  const std::int64_t si = col_major ? 1 : sc, sj = col_major ? sr : 1;
  f.scales = batch > 0 ? m.make(dtype::f32, {batch, sr, sc}, {sr * sc, si, sj})
                       : m.make(dtype::f32, {sr, sc}, {si, sj});
  for (std::int64_t e = 0; e < count; ++e)
    for (std::int64_t i = 0; i < sr; ++i)
      for (std::int64_t j = 0; j < sc; ++j) {
        const float s = static_cast<float>(1 << (rng() % 3)) / 2;
        static_cast<float*>(f.scales.data)[e * sr * sc + i * si + j * sj] = s;
        for (std::int64_t r = i * block_rows; r < rows && r < (i + 1) * block_rows; ++r)
          for (std::int64_t c = j * block_cols; c < k && c < (j + 1) * block_cols; ++c)
            f.values[static_cast<std::size_t>((e * rows + r) * k + c)] *= s;
      }
  return f;
}

/// Element (i, j) of a[ea] * b[eb]^T.
inline double product_at(const exact_factor& a, std::int64_t ea, std::int64_t i, const exact_factor& b,
                         std::int64_t eb, std::int64_t j) {
  double s = 0;
  for (std::int64_t k = 0; k < a.k; ++k) s += a.at(ea, i, k) * b.at(eb, j, k);
  return s;
}

inline tensor make_ids(memory& m, const std::vector<std::int32_t>& v) {
  return m.of<std::int32_t>({static_cast<std::int64_t>(v.size())}, v);
}

}  // namespace portile::test
