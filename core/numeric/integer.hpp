#pragma once

#include <cstdint>

namespace portile::numeric {

// a mod b in [0, b), also for negative a. b > 0.
constexpr std::int32_t floor_mod(std::int64_t a, std::int32_t b) {
  const std::int64_t r = a % b;
  return static_cast<std::int32_t>(r < 0 ? r + b : r);
}

// ceil(a / b). a >= 0, b > 0; never overflows.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The smallest multiple of n that is >= a. a >= 0, n > 0, and the result must fit.
constexpr std::int64_t align_up(std::int64_t a, std::int64_t n) { return ceil_div(a, n) * n; }

}  // namespace portile::numeric
