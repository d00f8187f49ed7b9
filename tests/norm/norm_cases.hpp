#pragma once
// Rows for the norm tests and their values in double.
#include <cmath>
#include <portile/core/numeric/bf16.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

namespace portile::test {

/// Element at this offset of a bf16 or f32 tensor.
inline float element(const tensor& t, std::int64_t offset) {
  return t.dtype == dtype::f32 ? static_cast<float*>(t.data)[offset]
                               : numeric::to_float(static_cast<numeric::bf16*>(t.data)[offset]);
}
inline void set_element(const tensor& t, std::int64_t offset, float v) {
  if (t.dtype == dtype::f32)
    static_cast<float*>(t.data)[offset] = v;
  else
    static_cast<numeric::bf16*>(t.data)[offset] = numeric::to_bf16(v);
}
/// x rounded to an element type.
inline float rounded_to(dtype type, float x) {
  return type == dtype::f32 ? x : numeric::to_float(numeric::to_bf16(x));
}

inline bool same_bytes(const tensor& a, const tensor& b, std::int64_t offset_a, std::int64_t offset_b,
                       std::int64_t count) {
  const auto size = static_cast<std::size_t>(size_of(a.dtype));
  return std::memcmp(static_cast<char*>(a.data) + static_cast<std::size_t>(offset_a) * size,
                     static_cast<char*>(b.data) + static_cast<std::size_t>(offset_b) * size,
                     static_cast<std::size_t>(count) * size) == 0;
}

}  // namespace portile::test
