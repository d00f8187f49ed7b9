#pragma once

#include "bits.hpp"

namespace portile::numeric {

// An unsigned integer that orders scores as top-k does: a larger score has a larger key, -0 and +0 have the
// same key, and every NaN has key 0, below the key of -Inf.
constexpr std::uint32_t rank_key(float x) {
  if (is_nan(x)) return 0;
  const std::uint32_t u = float_bits(x);
  if ((u & fp32_abs_mask) == 0) return 0x80000000u;
  return (u >> 31) != 0 ? ~u : (u | 0x80000000u);
}

}  // namespace portile::numeric
