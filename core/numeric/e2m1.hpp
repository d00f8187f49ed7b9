#pragma once

#include "bits.hpp"
#include "types.hpp"

namespace portile::numeric {

inline constexpr float max_e2m1 = 6.0f;

// fp32 -> OCP E2M1, a code 0..15: bit 3 is the sign, codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6.
// Round to nearest, ties to the even code, saturating: |x| > 5 and +-Inf give +-6. The sign is kept, also of
// zeros and of underflow (|x| <= 0.25 gives +-0). The format has no NaN: every NaN gives 7.
constexpr std::uint8_t to_e2m1(float x) {
  if (is_nan(x)) return 7;
  const std::uint32_t u = float_bits(x);
  const std::uint32_t code = detail::nearest_even_code<1, 1>(u & fp32_abs_mask);
  return static_cast<std::uint8_t>((u >> 31 << 3) | (code > 7u ? 7u : code));
}

// Exact; looks at the low four bits only.
constexpr float e2m1_to_float(std::uint8_t code) {
  return detail::with_sign(detail::code_magnitude<1, 1>(code & 7u), (code & 8u) != 0);
}

// The low four bits of each code are used.
constexpr e2m1x2 pack_e2m1x2(std::uint8_t even, std::uint8_t odd) {
  return {static_cast<std::uint8_t>((even & 0xFu) | ((odd & 0xFu) << 4))};
}

constexpr e2m1x2 to_e2m1x2(float even, float odd) { return pack_e2m1x2(to_e2m1(even), to_e2m1(odd)); }

// Element `which` of a pair: 0 is the even one (low nibble), 1 the odd one.
constexpr std::uint8_t unpack_e2m1x2(e2m1x2 pair, int which) { return which == 0 ? pair.low() : pair.high(); }

}  // namespace portile::numeric
