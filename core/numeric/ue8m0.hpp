#pragma once

// UE8M0: a scale that is a power of two, stored as one byte b, the exponent field of the fp32 scale.

#include "bits.hpp"
#include "types.hpp"

namespace portile::numeric {

// The rule of the TileKernels-compatible operations: bits-to-float(b << 23). 1..254 give 2^(b-127), 0 gives
// 0.0 and 255 gives +Inf.
constexpr float ue8m0_to_float(std::uint8_t b) { return bits_float(std::uint32_t{b} << 23); }

// The rule of the OCP MX specification: 0..254 give 2^(b-127), 255 is NaN.
constexpr float ue8m0_to_float_ocp(std::uint8_t b) {
  if (b == 0) return 0x1p-127f;
  return b == 255 ? quiet_nan() : ue8m0_to_float(b);
}

// The exponent field, sign and mantissa ignored: the byte of a scale that is a power of two.
constexpr std::uint8_t exponent_field(float x) {
  return static_cast<std::uint8_t>((float_bits(x) >> 23) & 0xFFu);
}

// True for exactly the values that ue8m0_to_float returns: sign and mantissa bits are zero. 0.0 and +Inf
// count.
constexpr bool is_power_of_two_scale(float x) { return (float_bits(x) & 0x807FFFFFu) == 0; }

// Exponent field of the smallest power of two >= s, kept within 1..254 so that the scale is a normal number
// under both rules above: zero, negative and subnormal s (2^-127 too) give 1; s > 2^127, Inf and NaN give
// 254, the one case where the power of two may be smaller than s. No rounding is involved: exponent +
// (mantissa != 0).
constexpr std::uint8_t power_of_two_exponent_ceil(float s) {
  if (is_nan(s)) return 254;
  const std::uint32_t u = float_bits(s);
  if (u <= 0x00800000u || u >= 0x80000000u) return 1;
  const std::uint32_t e = ((u - 1) >> 23) + 1;
  return static_cast<std::uint8_t>(e > 254u ? 254u : e);
}

constexpr ue8m0x4 pack_ue8m0x4(std::uint8_t b0, std::uint8_t b1, std::uint8_t b2, std::uint8_t b3) {
  return {std::uint32_t{b0} | (std::uint32_t{b1} << 8) | (std::uint32_t{b2} << 16) |
          (std::uint32_t{b3} << 24)};
}

}  // namespace portile::numeric
