#pragma once
// Size rules that the mhc operations share. Host only.
#include <portile/core/check.hpp>

namespace portile::mhc {

/// Largest mhc_mult where an operation holds a token's mixes in registers.
inline constexpr std::int64_t max_mult = 8;

/// Mixes per token: mhc_mult for "pre", mhc_mult for "post", mhc_mult x mhc_mult for "comb".
constexpr std::int64_t mixes_of(std::int64_t mult) { return mult * (mult + 2); }
/// mhc_mult for this number of mixes; 0 when there is none.
constexpr std::int64_t mult_of(std::int64_t mixes) {
  std::int64_t m = 1;
  while (mixes_of(m) < mixes) ++m;
  return mixes_of(m) == mixes ? m : 0;
}

inline bool check_mult(checker& c) {
  return c.need(c.dim("mhc_mult") >= 1, "mhc_mult", c.dim("mhc_mult"), "must be at least 1");
}
inline bool check_small_mult(checker& c) {
  return check_mult(c) &&
         c.need(c.dim("mhc_mult") <= max_mult, "mhc_mult", c.dim("mhc_mult"), "must be at most 8");
}
inline bool check_hidden(checker& c) {
  const std::int64_t h = c.dim("hidden_size");
  return c.need(h > 0 && h % 8 == 0, "hidden_size", h, "must be a positive multiple of 8");
}

/// Sinkhorn's row and column steps. The upper bound only keeps a mistaken number from running for hours.
inline bool check_repeat(checker& c, const char* name, std::int64_t repeat) {
  return c.need(repeat >= 1, name, repeat, "must be at least 1") &&
         c.need(repeat <= 65536, name, repeat, "must be at most 65536");
}

}  // namespace portile::mhc
