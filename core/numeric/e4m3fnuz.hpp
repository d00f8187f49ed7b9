#pragma once

#include "bits.hpp"
#include "types.hpp"

namespace portile::numeric {

inline constexpr float max_e4m3fnuz = 240.0f;

// fp32 -> E4M3 FNUZ, round to nearest, ties to the even code, saturating: |x| >= 240 and +-Inf give +-240.
// There is no negative zero: -0 and negative underflow (|x| <= 2^-11) give 0x00. Every NaN gives 0x80.
constexpr e4m3fnuz to_e4m3fnuz(float x) {
  if (is_nan(x)) return {0x80};
  const std::uint32_t u = float_bits(x);
  const std::uint32_t code = detail::nearest_even_code<3, 8>(u & fp32_abs_mask);
  if (code == 0) return {0x00};
  return {static_cast<std::uint8_t>((u >> 31 << 7) | (code > 0x7Fu ? 0x7Fu : code))};
}

// Exact. 0x80 is the only NaN.
constexpr float to_float(e4m3fnuz x) {
  if (x.bits == 0x80u) return quiet_nan();
  return detail::with_sign(detail::code_magnitude<3, 8>(x.bits & 0x7Fu), (x.bits & 0x80u) != 0);
}

}  // namespace portile::numeric
