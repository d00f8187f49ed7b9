#pragma once
// What the short paths of the SwiGLU casts share: rows and scales whose places take few steps to find, since
// the sizes fit 32 bits.
#include "backends/gpu/rows.hpp"

namespace portile::gpu {

/// Rows of a matrix by bytes.
struct byte_rows {
  static constexpr std::int64_t limit = std::int64_t{1} << 31;
  unsigned char* data = nullptr;
  std::uint32_t pitch = 0;

  byte_rows() = default;
  explicit byte_rows(const tensor& t) {
    if (!t.defined()) return;
    data = static_cast<unsigned char*>(t.data);
    pitch = static_cast<std::uint32_t>(t.stride(0) * size_of(t.dtype));
  }
  template <class... Tensor>
  static bool fit(const Tensor&... t) {
    return ((!t.defined() || (t.stride(0) >= 0 && t.stride(0) * size_of(t.dtype) < limit)) && ...);
  }
  template <class T>
  PORTILE_DEVICE T* row(std::uint32_t t) const {
    return reinterpret_cast<T*>(data + std::uint64_t{t} * pitch);
  }
};

/// Scales of a row's groups in fp32, or exponents packed along the columns.
struct scale_table {
  unsigned char* data = nullptr;
  std::uint32_t row_pitch = 0, col_pitch = 0, cols = 0;
  bool packed = false;

  scale_table() = default;
  /// `num_cols`: for stores.
  scale_table(const tensor& t, std::int64_t num_cols)
      : data(static_cast<unsigned char*>(t.data)),
        row_pitch(static_cast<std::uint32_t>(4 * t.stride(0))),
        col_pitch(static_cast<std::uint32_t>(4 * t.stride(1))),
        cols(static_cast<std::uint32_t>(num_cols)),
        packed(t.dtype == dtype::ue8m0x4) {}
  static bool fits(const tensor& t) {
    const auto small = [](std::int64_t stride) { return stride >= 0 && 4 * stride < byte_rows::limit; };
    return (t.dtype == dtype::f32 || t.dtype == dtype::ue8m0x4) && small(t.stride(0)) && small(t.stride(1));
  }
  /// The word that the scale of group (t, col) is in, and the scale out of it.
  PORTILE_DEVICE std::uint32_t load(std::uint32_t t, std::uint32_t col) const {
    return load4(place(t, packed ? col / 4 : col));
  }
  PORTILE_DEVICE float scale(std::uint32_t word, std::uint32_t col) const {
    return packed ? numeric::ue8m0_to_float(static_cast<std::uint8_t>(word >> (col % 4 * 8)))
                  : numeric::bits_float(word);
  }
  /// As scale_writer does.
  PORTILE_DEVICE void store(std::uint32_t t, std::uint32_t col, const numeric::scale& s) const {
    if (!packed) {
      *reinterpret_cast<float*>(place(t, col)) = s.sf;
      return;
    }
    unsigned char* word = place(t, col / 4);
    word[col % 4] = s.exponent;
    if (cols % 4 != 0 && col + 1 == cols)
      for (std::uint32_t k = cols % 4; k < 4; ++k) word[k] = 0;
  }

 private:
  PORTILE_DEVICE unsigned char* place(std::uint32_t t, std::uint32_t col) const {
    return data + std::uint64_t{t} * row_pitch + std::uint64_t{col} * col_pitch;
  }
};

/// Eight e4m3 codes as they lie in memory.
struct raw_codes8 {
  words2 v;
  PORTILE_DEVICE void unpack(float (&x)[8]) const {
    PORTILE_UNROLL
    for (int i = 0; i < 8; i += 2)
      from_e4m3x2(static_cast<std::uint16_t>(v.w[i / 4] >> (i % 4 * 8)), x[i], x[i + 1]);
  }
  template <bool aligned>
  static PORTILE_DEVICE raw_codes8 load(const numeric::e4m3* p) {
    static_assert(aligned);
    return {load8(p)};
  }
};
template <class T>
using raw_eight = std::conditional_t<std::is_same_v<T, numeric::e4m3>, raw_codes8, raw8<T>>;

/// The largest magnitude; NaN is ignored.
template <int n>
PORTILE_DEVICE float largest_of(const float (&v)[n]) {
  float largest = 0.0f;
  PORTILE_UNROLL
  for (int i = 0; i < n; ++i) largest = max_number(::fabsf(v[i]), largest);
  return largest;
}

/// make_scale for e4m3 codes whose scales are not e4m3; `clamp_min` is at least max_e4m3 * 2^-126, so that
/// the scales and their inverses are normal numbers.
PORTILE_DEVICE numeric::scale e4m3_scale(float amax, float clamp_min, bool round) {
  if (!round) return numeric::scale_plain(amax, clamp_min, numeric::max_e4m3);
  // a / 448 rounded is at most 2^k exactly where a is at most 448 * 2^k = 1.75 * 2^(k + 8): a number above is
  // larger by more than half a unit in the last place of the quotient. So a mantissa above that of 448
  // carries into the exponent.
  const float a = min_number(max_number(amax, clamp_min), numeric::fp32_max);
  const std::uint32_t exponent = ((numeric::float_bits(a) + 0x1FFFFFu) >> 23) - 8u;
  return {numeric::bits_float(exponent << 23), numeric::bits_float((254u - exponent) << 23),
          static_cast<std::uint8_t>(exponent)};
}

}  // namespace portile::gpu
