#pragma once

#include "bits.hpp"
#include "types.hpp"

namespace portile::numeric {

inline constexpr float max_e4m3 = 448.0f;

// fp32 -> OCP E4M3, round to nearest, ties to the even code, saturating: |x| >= 448 and +-Inf give +-448.
// The sign is kept, also of zeros and of underflow (|x| <= 2^-10 gives +-0). Every NaN gives 0x7F.
constexpr e4m3 to_e4m3(float x) {
  if (is_nan(x)) return {0x7F};
  const std::uint32_t u = float_bits(x);
  const std::uint32_t code = detail::nearest_even_code<3, 7>(u & fp32_abs_mask);
  return {static_cast<std::uint8_t>((u >> 31 << 7) | (code > 0x7Eu ? 0x7Eu : code))};
}

// Exact. 0x7F and 0xFF are NaN.
constexpr float to_float(e4m3 x) {
  const std::uint32_t code = x.bits & 0x7Fu;
  if (code == 0x7Fu) return quiet_nan();
  return detail::with_sign(detail::code_magnitude<3, 7>(code), (x.bits & 0x80u) != 0);
}

}  // namespace portile::numeric
