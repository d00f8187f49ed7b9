#pragma once

// The bit patterns of fp32, and the rounding steps that the narrow formats share.

#include <bit>
#include <cstdint>

namespace portile::numeric {

constexpr std::uint32_t float_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
constexpr float bits_float(std::uint32_t u) { return std::bit_cast<float>(u); }

inline constexpr std::uint32_t fp32_abs_mask = 0x7FFFFFFFu;
inline constexpr std::uint32_t fp32_inf_bits = 0x7F800000u;
inline constexpr float fp32_max = 0x1.fffffep+127f;

constexpr bool is_nan(float x) { return (float_bits(x) & fp32_abs_mask) > fp32_inf_bits; }
constexpr bool is_finite(float x) { return (float_bits(x) & fp32_abs_mask) < fp32_inf_bits; }
constexpr float abs_f32(float x) { return bits_float(float_bits(x) & fp32_abs_mask); }

// Every function here that makes a NaN makes this one, so that all devices agree on its bits.
constexpr float quiet_nan() { return bits_float(0x7FC00000u); }
constexpr float infinity() { return bits_float(fp32_inf_bits); }

namespace detail {

// v / 2^shift rounded to the nearest integer, ties to even. 1 <= shift <= 31, v < 2^31.
constexpr std::uint32_t shift_right_nearest_even(std::uint32_t v, int shift) {
  const std::uint32_t below_half = (std::uint32_t{1} << (shift - 1)) - 1;
  return (v + below_half + ((v >> shift) & 1u)) >> shift;
}

// A finite magnitude on the grid of a narrow format: magnitude = units * 2^-shift codes above `code_base`.
// Consecutive codes are consecutive magnitudes in all these formats, so a carry out of the mantissa needs no
// care.
struct on_grid {
  std::uint32_t units;
  std::uint32_t code_base;
  int shift;
};

// Places |x| (bits u, finite or infinite) on the grid with `mantissa_bits` and exponent bias `bias` (bias <=
// 127).
template <int mantissa_bits, int bias>
constexpr on_grid place_on_grid(std::uint32_t u) {
  const int exponent = static_cast<int>(u >> 23);
  const std::uint32_t mantissa = u & 0x7FFFFFu;
  const int first_normal = 128 - bias;  // fp32 exponent field of the format's smallest normal
  if (exponent >= first_normal) {
    const auto code_base = static_cast<std::uint32_t>(exponent - first_normal + 1) << mantissa_bits;
    return {mantissa, code_base, 23 - mantissa_bits};
  }
  // Subnormal there: the grid has a fixed spacing, and the fp32 hidden bit becomes part of the units.
  const std::uint32_t significand = exponent == 0 ? mantissa : (mantissa | 0x800000u);
  const int effective = exponent == 0 ? 1 : exponent;
  return {significand, 0, 23 - mantissa_bits + first_normal - effective};
}

// Code of |x| rounded to nearest, ties to the even code; not clamped, the caller saturates. Needs bits u of a
// non-NaN.
template <int mantissa_bits, int bias>
constexpr std::uint32_t nearest_even_code(std::uint32_t u) {
  const on_grid g = place_on_grid<mantissa_bits, bias>(u);
  if (g.shift > 24) return 0;  // units < 2^24: below half of the smallest subnormal
  return g.code_base + shift_right_nearest_even(g.units, g.shift);
}

// Value of a sign-less code; specials (Inf, NaN) are the caller's. Exact.
template <int mantissa_bits, int bias>
constexpr float code_magnitude(std::uint32_t code) {
  const std::uint32_t exponent = code >> mantissa_bits;
  const std::uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  if (exponent == 0) {
    constexpr float unit = bits_float(static_cast<std::uint32_t>(128 - bias - mantissa_bits) << 23);
    return static_cast<float>(mantissa) * unit;
  }
  return bits_float(((exponent + 127u - bias) << 23) | (mantissa << (23 - mantissa_bits)));
}

constexpr float with_sign(float magnitude, bool negative) {
  return bits_float(float_bits(magnitude) | (negative ? 0x80000000u : 0u));
}

}  // namespace detail
}  // namespace portile::numeric
