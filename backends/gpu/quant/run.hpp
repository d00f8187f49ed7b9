#pragma once
// Sixteen consecutive values of an aligned row as they lie in memory, and their codes. Nothing is converted
// before all loads are under way, and few instructions are spent on a value.
#include "backends/gpu/quant/chunk.hpp"
#include "backends/gpu/quant/f16_codes.hpp"

namespace portile::gpu {

/// to_e2m1_code of bf16 values, none of them a NaN, times a power of two: on packed pairs. 1 is the spacing
/// of bf16 from 128 to 256, so a sum with 192 rounds to a whole number in the low bits.
struct packed_e2m1_encoder {
  std::uint32_t twice, once, half;  ///< multiples of the factor

  explicit PORTILE_DEVICE packed_e2m1_encoder(float factor)
      : twice(both(factor * 2.0f)), once(both(factor)), half(both(factor * 0.5f)) {}

  /// Eight codes.
  PORTILE_DEVICE std::uint32_t operator()(words4 x) const {
    std::uint32_t c[4];
    PORTILE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t v = x.w[j] & 0x7FFF7FFFu;
      const std::uint32_t halves = fma_bf16x2(v, twice, both(192.0f)),
                          ones = fma_bf16x2(v, once, both(194.0f));
      const std::uint32_t twos = min_bf16x2(fma_bf16x2(v, half, both(196.0f)), both(199.0f));
      const std::uint32_t code = min_bf16x2(min_bf16x2(halves, ones), twos);
      c[j] = (code & 0x00070007u) | (x.w[j] >> 12 & 0x00080008u);
    }
    return interleave(c);
  }
  /// Four pairs of codes, each in the low bits of its half of a word, as eight neighbouring ones.
  static PORTILE_DEVICE std::uint32_t interleave(const std::uint32_t (&c)[4]) {
    const std::uint32_t front = c[0] | c[1] << 8, back = c[2] | c[3] << 8;
    return byte_permute(front, back, 0x5410u) | byte_permute(front, back, 0x7632u) << 4;
  }

 private:
  static PORTILE_DEVICE std::uint32_t both(float bf16) {
    return (numeric::float_bits(bf16) >> 16) * 0x10001u;
  }
};

/// The same for any factor.
PORTILE_DEVICE std::uint32_t to_e2m1x8(words4 x, float factor) {
  constexpr float magic = 0x1.8p+23f;
  constexpr auto offset = [] {
    std::uint32_t sum = 0;
    for (int i = 0; i < 8; ++i) sum = sum * 16 + numeric::float_bits(magic);
    return sum;
  }();
  std::uint32_t codes = 0, signs[4];
  PORTILE_UNROLL
  for (int j = 3; j >= 0; --j) {
    PORTILE_UNROLL
    for (int h = 1; h >= 0; --h) {
      const float v = numeric::abs_f32(h == 0 ? bf16_low(x.w[j]) : bf16_high(x.w[j])) * factor;
      const float halves = ::fmaf(v, 2.0f, magic), ones = v + (magic + 2.0f);
      const float twos = min_number(::fmaf(v, 0.5f, magic + 4.0f), magic + 7.0f);
      codes = codes * 16 + numeric::float_bits(min_number(min_number(halves, ones), twos));
    }
    signs[j] = x.w[j] >> 12 & 0x00080008u;
  }
  return (codes - offset) | packed_e2m1_encoder::interleave(signs);
}

/// e4m3 codes of the eight magnitudes of e2m1 times a finite factor: four values are decoded and encoded by
/// one byte permutation.
class e2m1_to_e4m3 {
 public:
  explicit PORTILE_DEVICE e2m1_to_e4m3(float factor)
      : low_(to_e4m3x4(0.0f * factor, 0.5f * factor, factor, 1.5f * factor)),
        high_(to_e4m3x4(2.0f * factor, 3.0f * factor, 4.0f * factor, 6.0f * factor)) {}
  /// For 2^shift: from -5 to 6 every product but 0 is a normal number, so its exponent is what changes.
  explicit PORTILE_DEVICE e2m1_to_e4m3(int shift)
      : low_(0x3C383000u + static_cast<std::uint32_t>(shift) * 0x08080800u),
        high_(0x4C484440u + static_cast<std::uint32_t>(shift) * 0x08080808u) {}
  /// Four codes for the lower half of `codes`.
  PORTILE_DEVICE std::uint32_t operator()(std::uint32_t codes) const {
    return byte_permute(low_, high_, codes & 0x7777u) ^ signs(codes);
  }
  /// The signs of four codes as the highest bits of four bytes: a selector without bit 3 takes 0x80, one with
  /// it 0xFF.
  static PORTILE_DEVICE std::uint32_t signs(std::uint32_t codes) {
    return byte_permute(0x80808080u, 0x80808080u, codes) << 1 & 0x80808080u;
  }

 private:
  std::uint32_t low_, high_;
};

/// The same for bf16.
class e2m1_to_bf16 {
 public:
  explicit PORTILE_DEVICE e2m1_to_bf16(float factor) {
    const std::uint32_t a = to_bf16x2(0.0f * factor, 0.5f * factor), b = to_bf16x2(factor, 1.5f * factor);
    const std::uint32_t c = to_bf16x2(2.0f * factor, 3.0f * factor),
                        d = to_bf16x2(4.0f * factor, 6.0f * factor);
    lower_[0] = byte_permute(a, b, 0x6420u);
    upper_[0] = byte_permute(a, b, 0x7531u);
    lower_[1] = byte_permute(c, d, 0x6420u);
    upper_[1] = byte_permute(c, d, 0x7531u);
  }
  PORTILE_DEVICE words2 operator()(std::uint32_t codes) const {
    const std::uint32_t lower = byte_permute(lower_[0], lower_[1], codes & 0x7777u);
    const std::uint32_t upper =
        byte_permute(upper_[0], upper_[1], codes & 0x7777u) ^ e2m1_to_e4m3::signs(codes);
    return {{byte_permute(lower, upper, 0x5140u), byte_permute(lower, upper, 0x7362u)}};
  }

 private:
  std::uint32_t lower_[2], upper_[2];
};

/// Eight pairs of e5m6 codes, each in the low bits of its half of a word, as six words.
PORTILE_DEVICE void pack_e5m6x16(const std::uint32_t (&pairs)[8], std::uint32_t (&words)[6]) {
  PORTILE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const std::uint32_t* c = pairs + 4 * h;
    words[3 * h] = c[0] << 20 | (c[0] >> 8 & 0xFFF00u) | (c[1] >> 4 & 0xFFu);
    words[3 * h + 1] = c[1] << 28 | (c[1] & 0x0FFF0000u) | (c[2] << 4 & 0xFFF0u) | c[2] >> 24;
    words[3 * h + 2] = (c[2] >> 16) << 24 | (c[3] << 12 & 0xFFF000u) | c[3] >> 16;
  }
}

/// Two values as e5m6 codes in the halves of a word.
PORTILE_DEVICE std::uint32_t to_e5m6x2(float first, float second, bool has_nan) {
  if (has_nan) return std::uint32_t{numeric::to_e5m6(first)} | std::uint32_t{numeric::to_e5m6(second)} << 16;
  // numeric::to_e5m6, its condition for rounding up as a carry into bit 17.
  const std::uint32_t q = to_f16x2_toward_zero(first, second) >> 4 & 0x0FFF0FFFu;
  const std::uint32_t up = (numeric::float_bits(first) & 0x1FFFFu) + (q & 1u) + 0xFFFFu;
  const std::uint32_t up_second = (numeric::float_bits(second) & 0x1FFFFu) + (q >> 16 & 1u) + 0xFFFFu;
  const std::uint32_t magnitude = (q & 0x07FF07FFu) + (up >> 17) + (up_second >> 1 & 0x10000u);
  return min_u16x2(magnitude, numeric::detail::e5m6_largest * 0x10001u) | (q & 0x08000800u);
}
/// The same for bf16 times a factor, if that is done by rounding fp16, half up or, for a power of two, half
/// to even. Else false: where a product may be below the normal numbers, too large, or in the middle between
/// two codes.
PORTILE_DEVICE bool to_e5m6x16(const words4 (&x)[2], float factor, bool power_of_two,
                               std::uint32_t (&pairs)[8]) {
  std::uint32_t least = ~0u, most = 0, middle = ~0u;
  const std::uint32_t half = power_of_two ? 0x00070007u : 0x00080008u;
  const std::uint32_t even = power_of_two ? 0x00010001u : 0u;
  PORTILE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t pair = x[i / 4].w[i % 4], magnitude = pair & 0x7FFF7FFFu;
    least = min_u16x2(least, magnitude);
    most = max_u16x2(most, magnitude);
    const float a = bf16_low(pair) * factor, b = bf16_high(pair) * factor;
    middle = min_u16x2(middle, byte_permute(numeric::float_bits(a), numeric::float_bits(b), 0x5410u));
    const std::uint32_t h = to_f16x2_toward_zero(a, b);
    pairs[i] = (h + half + (h >> 4 & even)) >> 4 & 0x0FFF0FFFu;
  }
  const auto halves = [](std::uint32_t w) { return words2{{w & 0xFFFFu, w >> 16}}; };
  const words2 l = halves(least), m = halves(most), z = halves(middle);
  const float smallest = numeric::bits_float((l.w[0] < l.w[1] ? l.w[0] : l.w[1]) << 16) * factor;
  const float largest = numeric::bits_float((m.w[0] > m.w[1] ? m.w[0] : m.w[1]) << 16) * factor;
  return smallest >= 0x1p-14f && largest <= 65100.0f && (power_of_two || (z.w[0] != 0 && z.w[1] != 0));
}

/// Scales of a given tensor, fp32 or exponents packed along the columns, in two steps: first all words that a
/// thread needs are loaded, without a branch, then they are looked at.
struct word_scales {
  const std::uint32_t* data = nullptr;
  std::int64_t row_stride = 0, col_stride = 0;
  int pack_shift = 0;  ///< log2 of the scales in a word

  word_scales() = default;
  explicit word_scales(const tensor& t)
      : data(static_cast<const std::uint32_t*>(t.data)),
        row_stride(t.stride(0)),
        col_stride(t.stride(1)),
        pack_shift(t.dtype == dtype::ue8m0x4 ? 2 : 0) {}
  static bool suits(const tensor& t, bool pack_along_rows) {
    return t.dtype == dtype::f32 || (t.dtype == dtype::ue8m0x4 && !pack_along_rows);
  }

  PORTILE_DEVICE std::uint32_t word(std::int64_t i, std::int64_t j) const {
    return load4(data + i * row_stride + (j >> pack_shift) * col_stride);
  }
  PORTILE_DEVICE float value(std::uint32_t word, std::int64_t j) const {
    const std::uint32_t exponent = byte_permute(word, 0, 0x4440u | (static_cast<std::uint32_t>(j) & 3u));
    return numeric::bits_float(pack_shift == 0 ? word : exponent << 23);
  }
};

/// Where the code of column `col`, an even one, lies in its row.
template <class Code>
PORTILE_DEVICE std::int64_t code_offset(std::int64_t col) {
  return std::is_same_v<Code, numeric::e2m1x2> ? col / 2 : col;
}

/// Sixteen values. amax() has to be called before encode().
template <class In>
struct run16;

template <>
struct run16<float> {
  words4 q[4] = {};
  bool has_nan = false;

  PORTILE_DEVICE void load(const float* p) {
    PORTILE_UNROLL
    for (int i = 0; i < 4; ++i) q[i] = load16(p + 4 * i);
  }
  /// Largest magnitude, NaN ignored.
  PORTILE_DEVICE float amax() {
    float a = 0.0f;
    PORTILE_UNROLL
    for (int i = 0; i < 16; ++i) {
      a = amax_step(a, value(i));
      has_nan = has_nan || numeric::is_nan(value(i));
    }
    return a;
  }
  /// The values times `factor` as codes. `power_of_two`: the factor is one.
  template <class Code>
  PORTILE_DEVICE void encode(Code* to, float factor, bool) const {
    float v[16];
    scale(factor, v);
    store_codes16(to, 0, v);
  }
  PORTILE_DEVICE void scale(float factor, float (&v)[16]) const {
    PORTILE_UNROLL
    for (int i = 0; i < 16; ++i) v[i] = value(i) * factor;
  }
  PORTILE_DEVICE std::uint32_t e5m6_pair(int i, float factor) const {
    return to_e5m6x2(value(2 * i) * factor, value(2 * i + 1) * factor, has_nan);
  }

 private:
  PORTILE_DEVICE float value(int i) const { return numeric::bits_float(q[i / 4].w[i % 4]); }
};

template <>
struct run16<numeric::bf16> {
  words4 q[2] = {};
  bool has_nan = false;

  PORTILE_DEVICE void load(const numeric::bf16* p) {
    q[0] = load16(p);
    q[1] = load16(p + 8);
  }
  PORTILE_DEVICE float amax() {
    // As integers, so that one result tells of NaN, too.
    std::uint32_t m = 0;
    PORTILE_UNROLL
    for (int i = 0; i < 8; ++i) m = max_u16x2(m, q[i / 4].w[i % 4] & 0x7FFF7FFFu);
    std::uint32_t most = m >> 16 > (m & 0xFFFFu) ? m >> 16 : m & 0xFFFFu;
    has_nan = most > 0x7F80u;
    if (has_nan) {
      m = 0;
      PORTILE_UNROLL
      for (int i = 0; i < 8; ++i) m = amax_bf16x2(m, q[i / 4].w[i % 4]);
      most = m >> 16 > (m & 0xFFFFu) ? m >> 16 : m & 0xFFFFu;
    }
    return numeric::bits_float(most << 16);
  }
  template <class Code>
  PORTILE_DEVICE void encode(Code* to, float factor, bool power_of_two) const {
    if constexpr (std::is_same_v<Code, numeric::e2m1x2>) {
      // A given scale may be anything; here for positive numbers, which neither turn signs nor make a NaN of
      // Inf.
      if (!has_nan && numeric::float_bits(factor) - 1u < numeric::float_bits(numeric::fp32_max)) {
        if (power_of_two) {
          const packed_e2m1_encoder codes(factor);
          store8(to, {{codes(q[0]), codes(q[1])}});
        } else {
          store8(to, {{to_e2m1x8(q[0], factor), to_e2m1x8(q[1], factor)}});
        }
        return;
      }
    }
    float v[16];
    scale(factor, v);
    store_codes16(to, 0, v);
  }
  PORTILE_DEVICE std::uint32_t e5m6_pair(int i, float factor) const {
    const std::uint32_t pair = q[i / 4].w[i % 4];
    return to_e5m6x2(bf16_low(pair) * factor, bf16_high(pair) * factor, has_nan);
  }
  PORTILE_DEVICE void scale(float factor, float (&v)[16]) const {
    PORTILE_UNROLL
    for (int i = 0; i < 16; i += 2) {
      const std::uint32_t pair = q[i / 8].w[i / 2 % 4];
      v[i] = bf16_low(pair) * factor;
      v[i + 1] = bf16_high(pair) * factor;
    }
  }
};

template <>
struct run16<numeric::e4m3> {
  words4 q = {};

  PORTILE_DEVICE void load(const numeric::e4m3* p) { q = load16(p); }
  PORTILE_DEVICE float amax() {
    std::uint32_t m = 0;
    PORTILE_UNROLL
    for (int i = 0; i < 4; ++i) {
      m = max_u16x2(m, q.w[i] & 0x7F007F00u);
      m = max_u16x2(m, q.w[i] << 8 & 0x7F007F00u);
    }
    std::uint32_t most = m >> 16 > (m & 0xFFFFu) ? m >> 24 : m >> 8 & 0xFFu;
    if (most == 0x7Fu) {
      most = 0;
      PORTILE_UNROLL
      for (int i = 0; i < 16; ++i) {
        const std::uint32_t code = q.w[i / 4] >> (8 * (i % 4)) & 0x7Fu;
        most = code > most && code != 0x7Fu ? code : most;
      }
    }
    float first, second;
    from_e4m3x2(static_cast<std::uint16_t>(most), first, second);
    return first;
  }
  template <class Code>
  PORTILE_DEVICE void encode(Code* to, float factor, bool) const {
    if constexpr (std::is_same_v<Code, numeric::e4m3>) {
      if (e4m3_rescaler::takes(factor)) {
        const e4m3_rescaler codes(factor);
        return store16(to, {{codes(q.w[0]), codes(q.w[1]), codes(q.w[2]), codes(q.w[3])}});
      }
    }
    float v[16];
    PORTILE_UNROLL
    for (int i = 0; i < 16; i += 2) {
      from_e4m3x2(static_cast<std::uint16_t>(q.w[i / 4] >> (8 * (i % 4))), v[i], v[i + 1]);
      v[i] *= factor;
      v[i + 1] *= factor;
    }
    store_codes16(to, 0, v);
  }
};

template <>
struct run16<numeric::e2m1x2> {
  words2 q = {};

  PORTILE_DEVICE void load(const numeric::e2m1x2* p) { q = load8(p); }
  PORTILE_DEVICE float amax() {
    // As many bits as the code's magnitude: the longest run of them is that of the largest.
    std::uint32_t unary = 0;
    PORTILE_UNROLL
    for (int i = 0; i < 4; ++i)
      unary |= byte_permute(0x07030100u, 0x7F3F1F0Fu, q.w[i / 2] >> (16 * (i % 2)) & 0x7777u);
    unary |= unary >> 16;
    unary |= unary >> 8;
    return from_e2m1(static_cast<std::uint32_t>(count_lanes(unary & 0x7Fu)));
  }
  template <class Code>
  PORTILE_DEVICE void encode(Code* to, float factor, bool) const {
    if constexpr (std::is_same_v<Code, numeric::e4m3>) {
      if (numeric::is_finite(factor)) {
        look_up(to, e2m1_to_e4m3(factor));
        return;
      }
    }
    float v[16];
    PORTILE_UNROLL
    for (int i = 0; i < 16; ++i) v[i] = from_e2m1(q.w[i / 8] >> (4 * (i % 8)) & 15u) * factor;
    store_codes16(to, 0, v);
  }
  PORTILE_DEVICE void look_up(numeric::e4m3* to, const e2m1_to_e4m3& codes) const {
    store16(to, {{codes(q.w[0]), codes(q.w[0] >> 16), codes(q.w[1]), codes(q.w[1] >> 16)}});
  }
};

}  // namespace portile::gpu
