#pragma once

#include "bits.hpp"
#include "types.hpp"

namespace portile::numeric {

inline constexpr float max_e5m2 = 57344.0f;

// fp32 -> OCP E5M2, round to nearest, ties to the even code, saturating: +-Inf and all that would round to
// Inf give
// +-57344. The sign is kept, also of zeros and of underflow (|x| <= 2^-17). Every NaN gives 0x7F.
constexpr e5m2 to_e5m2(float x) {
  if (is_nan(x)) return {0x7F};
  const std::uint32_t u = float_bits(x);
  const std::uint32_t code = detail::nearest_even_code<2, 15>(u & fp32_abs_mask);
  return {static_cast<std::uint8_t>((u >> 31 << 7) | (code > 0x7Bu ? 0x7Bu : code))};
}

// Exact. S.11111.00 is Inf, the other codes with that exponent are NaN.
constexpr float to_float(e5m2 x) {
  const bool negative = (x.bits & 0x80u) != 0;
  const std::uint32_t code = x.bits & 0x7Fu;
  if (code > 0x7Cu) return quiet_nan();
  if (code == 0x7Cu) return detail::with_sign(infinity(), negative);
  return detail::with_sign(detail::code_magnitude<2, 15>(code), negative);
}

}  // namespace portile::numeric
