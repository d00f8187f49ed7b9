#pragma once

#include "bits.hpp"
#include "types.hpp"

namespace portile::numeric {

// fp32 -> bf16, round to nearest, ties to even. Magnitudes that round past the largest finite value become
// Inf; -0 and subnormals are kept. Every NaN becomes 0x7FC0 (sign and payload dropped).
constexpr bf16 to_bf16(float x) {
  if (is_nan(x)) return {0x7FC0};
  const std::uint32_t u = float_bits(x);
  return {static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

// fp64 -> bf16 with a single rounding, ties to even: the step through fp32 rounds to odd, which keeps what
// the second step must know. Specials as above.
constexpr bf16 double_to_bf16(double x) {
  float f = static_cast<float>(x);
  const double back = f;
  if (back != x && !is_nan(f) && float_bits(f) % 2 == 0) {
    const bool too_large = (back < 0 ? -back : back) > (x < 0 ? -x : x);
    f = bits_float(too_large ? float_bits(f) - 1 : float_bits(f) + 1);
  }
  return to_bf16(f);
}

// Exact; NaN payloads are kept.
constexpr float to_float(bf16 x) { return bits_float(std::uint32_t{x.bits} << 16); }

}  // namespace portile::numeric
