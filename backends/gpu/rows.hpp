#pragma once
// Rows of [num_tokens, hidden] or [batch, num_tokens, hidden] in pieces of eight values.
#include "backends/gpu/values.hpp"

namespace portile::gpu {

/// Eight values of a row as they lie in memory: bf16 or fp32.
template <class T>
struct raw8 {
  static constexpr int vectors = static_cast<int>(sizeof(T)) / 2;
  words4 v[vectors];

  /// `i` is a constant wherever this is inlined.
  PORTILE_DEVICE float operator[](int i) const {
    if constexpr (sizeof(T) == 4)
      return numeric::bits_float(v[i / 4].w[i % 4]);
    else
      return i % 2 == 0 ? bf16_low(v[0].w[i / 2]) : bf16_high(v[0].w[i / 2]);
  }
  template <bool aligned>
  static PORTILE_DEVICE raw8 load(const T* p) {
    raw8 r;
    if constexpr (aligned) {
      PORTILE_UNROLL
      for (int k = 0; k < vectors; ++k) r.v[k] = load16(reinterpret_cast<const unsigned char*>(p) + 16 * k);
    } else if constexpr (sizeof(T) == 4) {
      PORTILE_UNROLL
      for (int i = 0; i < 8; ++i) r.v[i / 4].w[i % 4] = numeric::float_bits(p[i]);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < 4; ++i)
        r.v[0].w[i] = std::uint32_t{p[2 * i].bits} | std::uint32_t{p[2 * i + 1].bits} << 16;
    }
    return r;
  }
  static PORTILE_DEVICE raw8 zero() {
    raw8 r;
    PORTILE_UNROLL
    for (int k = 0; k < vectors; ++k) r.v[k] = {};
    return r;
  }
  /// Rounded to T.
  static PORTILE_DEVICE raw8 from(const float (&x)[8]) {
    raw8 r;
    if constexpr (sizeof(T) == 4) {
      PORTILE_UNROLL
      for (int i = 0; i < 8; ++i) r.v[i / 4].w[i % 4] = numeric::float_bits(x[i]);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < 4; ++i) r.v[0].w[i] = to_bf16x2(x[2 * i], x[2 * i + 1]);
    }
    return r;
  }
  template <bool aligned>
  PORTILE_DEVICE void store(T* p) const {
    if constexpr (aligned) {
      PORTILE_UNROLL
      for (int k = 0; k < vectors; ++k) store16(reinterpret_cast<unsigned char*>(p) + 16 * k, v[k]);
    } else if constexpr (sizeof(T) == 4) {
      PORTILE_UNROLL
      for (int i = 0; i < 8; ++i) p[i] = (*this)[i];
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < 8; ++i) p[i] = {static_cast<std::uint16_t>(v[0].w[i / 2] >> (i % 2 * 16))};
    }
  }
};

/// Where the rows of a tensor begin; an absent one has none.
template <class T>
struct row_pointers {
  T* data = nullptr;
  std::int64_t batch = 0, row = 0;

  row_pointers() = default;
  explicit row_pointers(const tensor& t) {
    if (!t.defined()) return;
    data = static_cast<T*>(t.data);
    row = t.stride(t.rank - 2);
    batch = t.rank == 3 ? t.stride(0) : 0;
  }
  PORTILE_DEVICE explicit operator bool() const { return data != nullptr; }
  PORTILE_DEVICE T* operator()(std::int64_t b, std::int64_t t) const { return data + b * batch + t * row; }
};

/// True when all of these are absent or have rows at multiples of 16 bytes.
template <class... Tensor>
bool all_rows_aligned(const Tensor&... t) {
  return ((!t.defined() || rows_aligned(t, 16)) && ...);
}

}  // namespace portile::gpu
