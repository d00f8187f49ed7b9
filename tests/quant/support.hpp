#pragma once
// What the tests of the quantising operations share.
#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/e2m1.hpp>
#include <portile/core/numeric/e4m3.hpp>
#include <portile/core/numeric/e5m6.hpp>
#include <portile/core/numeric/ue8m0.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

namespace portile::test {

/// Value of a matrix element as fp32; codes without their scale.
inline float get(const tensor& t, std::int64_t i, std::int64_t j) {
  switch (t.dtype) {
    case dtype::f32:
      return at<float>(t, i, j);
    case dtype::bf16:
      return numeric::to_float(at<numeric::bf16>(t, i, j));
    case dtype::e4m3:
      return numeric::to_float(at<numeric::e4m3>(t, i, j));
    case dtype::e2m1x2:
      return numeric::e2m1_to_float(
          numeric::unpack_e2m1x2(at<numeric::e2m1x2>(t, i, j / 2), static_cast<int>(j % 2)));
    case dtype::e5m6x8: {
      std::uint8_t bytes[12];
      std::uint16_t codes[8];
      for (int k = 0; k < 12; ++k) bytes[k] = at<std::uint8_t>(t, i, j / 8 * 12 + k);
      numeric::unpack_e5m6x8(bytes, codes);
      return numeric::e5m6_to_float(codes[j % 8]);
    }
    default:
      throw error(status_code::internal, "get: dtype");
  }
}

/// Equal bytes, element by element of two tensors of the same shape (any rank); strides may differ.
inline bool same_bytes(const tensor& a, const tensor& b) {
  if (a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d)
    if (a.extent(d) != b.extent(d)) return false;
  const std::int64_t size = size_of(a.dtype);
  for (std::int64_t k = 0; k < a.numel(); ++k) {
    std::int64_t rest = k, oa = 0, ob = 0;
    for (int d = a.rank - 1; d >= 0; --d) {
      oa += rest % a.extent(d) * a.stride(d);
      ob += rest % a.extent(d) * b.stride(d);
      rest /= a.extent(d);
    }
    if (std::memcmp(static_cast<char*>(a.data) + oa * size, static_cast<char*>(b.data) + ob * size,
                    static_cast<std::size_t>(size)) != 0)
      return false;
  }
  return true;
}

/// A matrix without rows, as large and as null as it gets.
inline tensor without_rows(tensor t) {
  t.extents[0] = 0;
  t.data = nullptr;
  return t;
}

template <class P>
void run_on_host(const P& p) {
  queue q{cpu_selector};
  run(q, p);
}

}  // namespace portile::test
