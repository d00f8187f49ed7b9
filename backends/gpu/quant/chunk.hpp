#pragma once
// Runs of values of one row, with vector accesses where the rows are aligned and one by one elsewhere.
#include "backends/gpu/values.hpp"

namespace portile::gpu {

/// Eight values from column `first` on, a multiple of eight, out of their twelve bytes.
PORTILE_DEVICE void load_e5m6(const numeric::e5m6x8* row, std::int64_t first, bool aligned, float* v) {
  const numeric::e5m6x8* p = row + first / 8 * 12;
  std::uint8_t bytes[12];
  PORTILE_UNROLL
  for (int k = 0; k < 3; ++k) {
    if (aligned) {
      const std::uint32_t w = load4(p + 4 * k);
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) bytes[4 * k + j] = static_cast<std::uint8_t>(w >> (8 * j));
    } else {
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) bytes[4 * k + j] = p[4 * k + j].bits;
    }
  }
  std::uint16_t codes[8];
  numeric::unpack_e5m6x8(bytes, codes);
  PORTILE_UNROLL
  for (int i = 0; i < 8; ++i) v[i] = numeric::e5m6_to_float(codes[i]);
}
PORTILE_DEVICE void store_e5m6(numeric::e5m6x8* row, std::int64_t first, bool aligned, const float* v) {
  std::uint16_t codes[8];
  PORTILE_UNROLL
  for (int i = 0; i < 8; ++i) codes[i] = numeric::to_e5m6(v[i]);
  std::uint8_t bytes[12];
  numeric::pack_e5m6x8(codes, bytes);
  numeric::e5m6x8* p = row + first / 8 * 12;
  PORTILE_UNROLL
  for (int k = 0; k < 3; ++k) {
    if (aligned) {
      std::uint32_t w = 0;
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) w |= std::uint32_t{bytes[4 * k + j]} << (8 * j);
      store4(p + 4 * k, w);
    } else {
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) p[4 * k + j] = {bytes[4 * k + j]};
    }
  }
}

/// `Count` values of a row, without their scale. `aligned`: the address suits load_values.
template <int Count, class T>
PORTILE_DEVICE void load_chunk(const T* row, std::int64_t first, bool aligned, float* v) {
  if constexpr (std::is_same_v<T, numeric::e5m6x8>) {
    PORTILE_UNROLL
    for (int i = 0; i < Count; i += 8) load_e5m6(row, first + i, aligned, v + i);
  } else if (aligned) {
    load_values<T, Count>(row, first, v);
  } else {
    PORTILE_UNROLL
    for (int i = 0; i < Count; ++i) v[i] = load_value(row, first + i);
  }
}
template <class T, int Count>
constexpr std::int64_t chunk_load_alignment() {
  return std::is_same_v<T, numeric::e5m6x8> ? 4 : load_alignment<T, Count>();
}

/// `Count` scaled values as elements of T, codes or not.
template <int Count, class T>
PORTILE_DEVICE void store_chunk(T* row, std::int64_t first, bool aligned, const float* v) {
  if constexpr (std::is_same_v<T, numeric::e5m6x8>) {
    PORTILE_UNROLL
    for (int i = 0; i < Count; i += 8) store_e5m6(row, first + i, aligned, v + i);
  } else if constexpr (std::is_same_v<T, numeric::e4m3>) {
    if (aligned) {
      if constexpr (Count == 16) store_codes16(row, first, v);
      if constexpr (Count == 8)
        store8(row + first, {{to_e4m3x4(v[0], v[1], v[2], v[3]), to_e4m3x4(v[4], v[5], v[6], v[7])}});
      static_assert(Count == 16 || Count == 8);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < Count; ++i) row[first + i] = numeric::to_e4m3(v[i]);
    }
  } else if constexpr (std::is_same_v<T, numeric::e2m1x2>) {
    static_assert(Count == 16);
    if (aligned) {
      store_codes16(row, first, v);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < Count; i += 2)
        row[(first + i) / 2] = {static_cast<std::uint8_t>(to_e2m1_code(v[i]) | to_e2m1_code(v[i + 1]) << 4)};
    }
  } else if (aligned) {
    store_values<T, Count>(row, first, v);
  } else {
    PORTILE_UNROLL
    for (int i = 0; i < Count; ++i) store_value(row, first + i, v[i]);
  }
}
/// Bytes that the address of store_chunk must be a multiple of to be aligned.
template <class T, int Count>
constexpr std::int64_t chunk_store_alignment() {
  return chunk_load_alignment<T, Count>();
}

template <class T, int Count>
bool loads_aligned(const tensor& t) {
  return rows_aligned(t, chunk_load_alignment<T, Count>());
}
template <class T, int Count>
bool stores_aligned(const tensor& t) {
  return rows_aligned(t, chunk_store_alignment<T, Count>());
}

/// One step of amax over a chunk.
template <int Count>
PORTILE_DEVICE float amax_of(float amax, const float* v) {
  PORTILE_UNROLL
  for (int i = 0; i < Count; ++i) amax = amax_step(amax, v[i]);
  return amax;
}

/// log2 of a power of two.
inline int shift_of(std::int64_t power) {
  int s = 0;
  while ((std::int64_t{1} << s) < power) ++s;
  return s;
}

}  // namespace portile::gpu
