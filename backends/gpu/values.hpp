#pragma once
// Values and scale factors of a problem as kernels read and write them: any element type, any layout.
#include <portile/core/numeric/e5m6.hpp>
#include <portile/core/numeric/scale.hpp>
#include <portile/core/numeric/stochastic.hpp>
#include <portile/core/numeric/ue8m0.hpp>
#include <portile/kernels/quant/scales.hpp>

#include "backends/gpu/platform.hpp"

namespace portile::gpu {

/// Calls f(T{}) with the element type that `type` stands for, out of the listed ones.
template <class... T, class F>
void visit(dtype type, F f) {
  const bool found = ((type == dtype_of<T> ? (f(T{}), true) : false) || ...);
  if (!found) throw error(status_code::internal, "no code for dtype " + std::string(to_string(type)));
}

/// True when every row of a matrix, or of a batch of them, starts at a multiple of `bytes`.
inline bool rows_aligned(const tensor& t, std::int64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(bytes) != 0) return false;
  for (int i = 0; i + 1 < t.rank; ++i)
    if (t.extent(i) > 1 && t.stride(i) * size_of(t.dtype) % bytes != 0) return false;
  return true;
}

/// The halves of two bf16 in a word, as fp32; the first one is the low half.
PORTILE_DEVICE float bf16_low(std::uint32_t pair) { return numeric::bits_float(pair << 16); }
PORTILE_DEVICE float bf16_high(std::uint32_t pair) { return numeric::bits_float(pair & 0xFFFF0000u); }

/// Codes 0..7 of e2m1 with the sign, without a table: the exponent and mantissa fields moved to fp32's, then
/// rescaled.
PORTILE_DEVICE float from_e2m1(std::uint32_t code) {
  const float magnitude = numeric::bits_float((code & 7u) << 22) * 0x1p+126f;
  return numeric::bits_float(numeric::float_bits(magnitude) | (code & 8u) << 28);
}

/// numeric::to_e2m1 in a few operations. The grid has the spacings 0.5, 1 and 2; a line's code is the
/// smallest of the three roundings. Adding 1.5 * 2^23 rounds to a whole number, ties to even, in the low
/// bits.
PORTILE_DEVICE std::uint32_t to_e2m1_code(float x) {
  constexpr float magic = 0x1.8p+23f;
  // NaN becomes 6 here, and the sign of a zero stays.
  const float clamped = max_number(min_number(x, 6.0f), -6.0f);
  const std::uint32_t bits = numeric::float_bits(clamped);
  const float v = numeric::bits_float(bits & numeric::fp32_abs_mask);
  const float halves = ::fmaf(v, 2.0f, magic), ones = v + (magic + 2.0f);
  const float twos = ::fmaf(v, 0.5f, magic + 4.0f);
  const std::uint32_t code = numeric::float_bits(min_number(min_number(halves, ones), twos));
  return (code & 7u) | (bits >> 28 & 8u);
}

/// `Count` consecutive values of a row as fp32, without their scale. Count is a multiple of 4, and the
/// address is a multiple of the bytes that they take up to 16.
template <class T, int Count>
PORTILE_DEVICE void load_values(const T* row, std::int64_t first, float* v) {
  if constexpr (std::is_same_v<T, float>) {
    PORTILE_UNROLL
    for (int i = 0; i < Count; i += 4) {
      const words4 w = load16(row + first + i);
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) v[i + j] = numeric::bits_float(w.w[j]);
    }
  } else if constexpr (std::is_same_v<T, numeric::bf16>) {
    static_assert(Count % 8 == 0);
    PORTILE_UNROLL
    for (int i = 0; i < Count; i += 8) {
      const words4 w = load16(row + first + i);
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) {
        v[i + 2 * j] = bf16_low(w.w[j]);
        v[i + 2 * j + 1] = bf16_high(w.w[j]);
      }
    }
  } else {
    constexpr int bytes = std::is_same_v<T, numeric::e4m3> ? Count : Count / 2;
    static_assert(bytes == 4 || bytes == 8 || bytes == 16);
    std::uint32_t w[bytes / 4];
    const T* p = row + (std::is_same_v<T, numeric::e4m3> ? first : first / 2);
    if constexpr (bytes == 16) {
      const words4 q = load16(p);
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) w[j] = q.w[j];
    } else if constexpr (bytes == 8) {
      const words2 q = load8(p);
      w[0] = q.w[0];
      w[1] = q.w[1];
    } else {
      w[0] = load4(p);
    }
    PORTILE_UNROLL
    for (int j = 0; j < bytes / 4; ++j) {
      if constexpr (std::is_same_v<T, numeric::e4m3>) {
        from_e4m3x2(static_cast<std::uint16_t>(w[j]), v[4 * j], v[4 * j + 1]);
        from_e4m3x2(static_cast<std::uint16_t>(w[j] >> 16), v[4 * j + 2], v[4 * j + 3]);
      } else {
        PORTILE_UNROLL
        for (int k = 0; k < 8; ++k) v[8 * j + k] = from_e2m1(w[j] >> (4 * k) & 15u);
      }
    }
  }
}
/// Bytes that the address of load_values must be a multiple of.
template <class T, int Count>
constexpr std::int64_t load_alignment() {
  const int bytes = std::is_same_v<T, numeric::e2m1x2> ? Count / 2 : Count * static_cast<int>(sizeof(T));
  return bytes < 16 ? bytes : 16;
}

/// One value of a row, any alignment.
template <class T>
PORTILE_DEVICE float load_value(const T* row, std::int64_t j) {
  if constexpr (std::is_same_v<T, float>)
    return row[j];
  else if constexpr (std::is_same_v<T, numeric::e2m1x2>)
    return from_e2m1(numeric::unpack_e2m1x2(row[j / 2], static_cast<int>(j % 2)));
  else
    return numeric::to_float(row[j]);
}

/// `Count` consecutive values as T, fp32 or bf16; the address is a multiple of the bytes written up to 16.
template <class T, int Count>
PORTILE_DEVICE void store_values(T* row, std::int64_t first, const float* v) {
  constexpr int bytes = Count * static_cast<int>(sizeof(T));
  static_assert(bytes % 16 == 0 || bytes == 8 || bytes == 4);
  std::uint32_t w[bytes / 4];
  PORTILE_UNROLL
  for (int i = 0; i < bytes / 4; ++i) {
    if constexpr (std::is_same_v<T, float>)
      w[i] = numeric::float_bits(v[i]);
    else
      w[i] = to_bf16x2(v[2 * i], v[2 * i + 1]);
  }
  if constexpr (bytes == 4) {
    store4(row + first, w[0]);
  } else if constexpr (bytes == 8) {
    store8(row + first, {{w[0], w[1]}});
  } else {
    PORTILE_UNROLL
    for (int i = 0; i < bytes / 16; ++i)
      store16(reinterpret_cast<unsigned char*>(row + first) + 16 * i,
              {{w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]}});
  }
}
/// One value, any alignment.
template <class T>
PORTILE_DEVICE void store_value(T* row, std::int64_t j, float v) {
  if constexpr (std::is_same_v<T, float>)
    row[j] = v;
  else
    row[j] = {static_cast<std::uint16_t>(to_bf16x2(v, 0.0f))};
}

/// Sixteen scaled values as codes; the address is a multiple of the bytes written.
template <class Code>
PORTILE_DEVICE void store_codes16(Code* row, std::int64_t first, const float* v) {
  if constexpr (std::is_same_v<Code, numeric::e4m3>) {
    words4 w;
    PORTILE_UNROLL
    for (int j = 0; j < 4; ++j) w.w[j] = to_e4m3x4(v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]);
    store16(row + first, w);
  } else {
    words2 w{};
    PORTILE_UNROLL
    for (int i = 0; i < 16; ++i) w.w[i / 8] |= to_e2m1_code(v[i]) << (4 * (i % 8));
    store8(row + first / 2, w);
  }
}

/// sf(i, j) of a given tensor of scales as fp32, whatever its dtype and strides. Absent: 1.
struct scale_reader {
  const void* data = nullptr;
  dtype type = dtype::none;
  bool along_rows = false;  ///< the four exponents of a word belong to four rows
  std::int64_t row_stride = 0, col_stride = 0;

  scale_reader() = default;
  scale_reader(const tensor& t, bool pack_along_rows)
      : data(t.data),
        type(t.dtype),
        along_rows(pack_along_rows),
        row_stride(t.stride(0)),
        col_stride(t.stride(1)) {}

  PORTILE_DEVICE float operator()(std::int64_t i, std::int64_t j) const {
    switch (type) {
      case dtype::f32:
        return static_cast<const float*>(data)[i * row_stride + j * col_stride];
      case dtype::e4m3:
        return numeric::to_float(static_cast<const numeric::e4m3*>(data)[i * row_stride + j * col_stride]);
      case dtype::ue8m0x4: {
        const std::int64_t row = along_rows ? i / 4 : i, col = along_rows ? j : j / 4;
        const std::uint32_t word =
            load4(static_cast<const numeric::ue8m0x4*>(data) + row * row_stride + col * col_stride);
        return numeric::ue8m0_to_float(
            numeric::ue8m0x4{word}.byte(static_cast<int>((along_rows ? i : j) % 4)));
      }
      default:
        return 1.0f;
    }
  }
};

/// Stores the scale of block (i, j) of a matrix with `cols` columns of blocks; packed exponents run along j.
/// Threads may store their scales in any order: a packed one writes its own byte, and the last of a row
/// zeroes the word's unused ones.
struct scale_writer {
  void* data = nullptr;
  dtype type = dtype::none;
  std::int64_t row_stride = 0, col_stride = 0, cols = 0;

  scale_writer() = default;
  scale_writer(const tensor& t, std::int64_t num_cols)
      : data(t.data), type(t.dtype), row_stride(t.stride(0)), col_stride(t.stride(1)), cols(num_cols) {}

  PORTILE_DEVICE void operator()(std::int64_t i, std::int64_t j, const numeric::scale& s) const {
    if (type == dtype::f32) {
      static_cast<float*>(data)[i * row_stride + j * col_stride] = s.sf;
    } else if (type == dtype::e4m3) {
      static_cast<numeric::e4m3*>(data)[i * row_stride + j * col_stride] = numeric::to_e4m3(s.sf);
    } else if (type == dtype::ue8m0x4) {
      auto* bytes = reinterpret_cast<std::uint8_t*>(static_cast<numeric::ue8m0x4*>(data) + i * row_stride +
                                                    j / 4 * col_stride);
      bytes[j % 4] = s.exponent;
      if (j + 1 == cols)
        for (std::int64_t k = j % 4 + 1; k < 4; ++k) bytes[k] = 0;
    }
  }
};

/// One step of amax = max |x| from 0 on. NaN is ignored; Inf stays, and make_scale takes it for the largest
/// number.
PORTILE_DEVICE float amax_step(float amax, float x) { return max_number(numeric::abs_f32(x), amax); }

/// numeric::scale_power_of_two without the division. max_q is (1 + m) * 2^k and amax at least max_q * 2^-126,
/// so amax / max_q exceeds 2^n, also after it is rounded, exactly when amax exceeds max_q * 2^n.
PORTILE_DEVICE numeric::scale scale_power_of_two(float amax, float clamp_min, float max_q) {
  const float a = numeric::detail::clamped_amax(amax, clamp_min, max_q * 0x1p-126f);
  const std::uint32_t q = numeric::float_bits(max_q), mantissa = q & 0x7FFFFFu;
  const std::uint32_t e =
      ((numeric::float_bits(a) + (0x7FFFFFu - mantissa)) >> 23) - ((q >> 23) - numeric::exponent_field(1.0f));
  return {numeric::bits_float(e << 23), numeric::bits_float((254u - e) << 23), static_cast<std::uint8_t>(e)};
}

/// The scale of a block by the operation's flags.
PORTILE_DEVICE numeric::scale make_scale(float amax, float clamp_min, float max_q,
                                         const quant::scale_flags& f) {
  if (f.e4m3) return numeric::scale_e4m3(amax, clamp_min, max_q);
  return f.round ? gpu::scale_power_of_two(amax, clamp_min, max_q)
                 : numeric::scale_plain(amax, clamp_min, max_q);
}

/// Division of indices below 2^31 by a number that the host knows: one multiplication.
class narrow_divider {
 public:
  static constexpr std::int64_t limit = std::int64_t{1} << 31;

  narrow_divider() = default;
  explicit narrow_divider(std::int64_t d) : divisor_(static_cast<std::uint32_t>(d)) {
    // Granlund and Montgomery: with 2^shift >= d, ceil(2^(31 + shift) / d) fits 32 bits and gives every
    // dividend below 2^31 exactly.
    while ((std::int64_t{1} << shift_) < d) ++shift_;
    const auto power = std::uint64_t{1} << (31 + shift_);
    multiplier_ = static_cast<std::uint32_t>((power + divisor_ - 1) / divisor_);
  }
  PORTILE_DEVICE std::uint32_t quotient(std::uint32_t n) const {
    // 2 * n, so that the product's upper word is what is to be shifted.
    return static_cast<std::uint32_t>(std::uint64_t{n * 2u} * multiplier_ >> 32) >> shift_;
  }
  PORTILE_DEVICE std::uint32_t value() const { return divisor_; }

 private:
  std::uint32_t divisor_ = 1, multiplier_ = std::uint32_t{1} << 31;
  int shift_ = 0;
};

/// Division of indices by a number that the host knows: exact for all non-negative 64-bit values, one
/// multiplication where everything fits 32 bits.
class divider {
 public:
  divider() = default;
  /// For dividends up to `largest`.
  divider(std::int64_t d, std::int64_t largest)
      : divisor_(d), is_narrow_(largest < narrow_divider::limit && d < narrow_divider::limit) {
    if (is_narrow_) narrow_ = narrow_divider(d);
  }
  PORTILE_DEVICE std::int64_t quotient(std::int64_t n) const {
    return is_narrow_ ? std::int64_t{narrow_.quotient(static_cast<std::uint32_t>(n))} : n / divisor_;
  }
  PORTILE_DEVICE std::int64_t value() const { return divisor_; }

 private:
  std::int64_t divisor_ = 1;
  narrow_divider narrow_;
  bool is_narrow_ = true;
};

}  // namespace portile::gpu
