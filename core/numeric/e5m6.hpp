#pragma once

// E5M6: 1 sign, 5 exponent, 6 mantissa bits, bias 15; a code is the upper 12 bits of an fp16.

#include "f16.hpp"

namespace portile::numeric {

inline constexpr float max_e5m6 = 65024.0f;

namespace detail {
inline constexpr std::uint32_t e5m6_largest = 0x7BFu, e5m6_nan = 0x7E0u;
}

// fp32 -> E5M6 as the format is used in practice: h = fp16(x) toward zero, q = h >> 4, r = the low 17
// mantissa bits of x, and q + 1 when (q & 1) + r > 0x10000. For |x| >= 2^-14 that is round to nearest, ties
// to even. Below, in the subnormals, r is not what the shift removed, so the result is one of the two
// neighbours but not always the nearer. Saturating (a finite or infinite x never gives exponent 31); the sign
// is kept, also of zeros. NaN gives 0x7E0.
constexpr std::uint16_t to_e5m6(float x) {
  if (is_nan(x)) return detail::e5m6_nan;
  const std::uint32_t q = std::uint32_t{to_f16_rtz(x).bits} >> 4;
  const std::uint32_t r = float_bits(x) & 0x1FFFFu;
  const std::uint32_t magnitude = (q & 0x7FFu) + ((q & 1u) + r > 0x10000u ? 1u : 0u);
  const std::uint32_t sign = q & 0x800u;
  return static_cast<std::uint16_t>(sign |
                                    (magnitude > detail::e5m6_largest ? detail::e5m6_largest : magnitude));
}

// The same with round to nearest, ties to even, everywhere.
constexpr std::uint16_t to_e5m6_nearest(float x) {
  if (is_nan(x)) return detail::e5m6_nan;
  const std::uint32_t u = float_bits(x);
  const std::uint32_t code = detail::nearest_even_code<6, 15>(u & fp32_abs_mask);
  return static_cast<std::uint16_t>((u >> 31 << 11) |
                                    (code > detail::e5m6_largest ? detail::e5m6_largest : code));
}

// Exact; looks at the low 12 bits only. Exponent 31 decodes as Inf or NaN.
constexpr float e5m6_to_float(std::uint16_t code) {
  return to_float(f16{static_cast<std::uint16_t>((code & 0xFFFu) << 4)});
}

// Eight 12-bit codes form one 96-bit big-endian string, the first code first, stored as three 32-bit words,
// each word least significant byte first. So byte 3 of `out` holds the upper bits of codes[0].
constexpr void pack_e5m6x8(const std::uint16_t codes[8], std::uint8_t out[12]) {
  std::uint32_t h[8] = {};
  for (int i = 0; i < 8; ++i) h[i] = codes[i] & 0xFFFu;
  const std::uint32_t words[3] = {(h[0] << 20) | (h[1] << 8) | (h[2] >> 4),
                                  ((h[2] & 15u) << 28) | (h[3] << 16) | (h[4] << 4) | (h[5] >> 8),
                                  ((h[5] & 255u) << 24) | (h[6] << 12) | h[7]};
  for (int i = 0; i < 12; ++i) out[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
}

constexpr void unpack_e5m6x8(const std::uint8_t in[12], std::uint16_t codes[8]) {
  std::uint32_t w[3] = {};
  for (int i = 0; i < 12; ++i) w[i / 4] |= std::uint32_t{in[i]} << (8 * (i % 4));
  const std::uint32_t h[8] = {w[0] >> 20, w[0] >> 8, (w[0] << 4) | (w[1] >> 28),
                              w[1] >> 16, w[1] >> 4, (w[1] << 8) | (w[2] >> 24),
                              w[2] >> 12, w[2]};
  for (int i = 0; i < 8; ++i) codes[i] = static_cast<std::uint16_t>(h[i] & 0xFFFu);
}

}  // namespace portile::numeric
