#pragma once

// From the largest magnitude of a block to its scale factor.
// value = code * sf, code = encode(value * sf_inv); all arithmetic is fp32, round to nearest, and every
// division is IEEE.
//
// With a = max(amax, clamp_min):
//   plain         sf = a / max_q                                  sf_inv = max_q / a  (not 1 / sf)
//   power of two  sf = smallest 2^n >= a / max_q                  sf_inv = 2^-n
//   e4m3          sf = e4m3(a / max_q), saturating                sf_inv = 1 / fp32(sf)
// A NaN amax counts as clamp_min and an infinite one as the largest finite fp32, so no input gives a scale
// that is zero, infinite or NaN. For the same reason clamp_min has a floor, max_q * 2^-126 (e4m3 scales:
// max_q * 2^-9), where a / max_q is the smallest normal scale. Domain: max_q >= 6.

#include "e2m1.hpp"
#include "e4m3.hpp"
#include "e5m6.hpp"
#include "ue8m0.hpp"

namespace portile::numeric {

struct scale {
  float sf;
  float sf_inv;
  std::uint8_t exponent;  // exponent field of sf: its ue8m0 byte if sf is a power of two
};

// Default lower bounds of amax, per format of the codes; the last two are for scales stored as e4m3.
inline constexpr float clamp_e4m3 = 1e-4f;
inline constexpr float clamp_e5m6 = 1e-4f;
inline constexpr float clamp_e2m1 = 6.0f * 0x1p-126f;
inline constexpr float clamp_e4m3_with_e4m3_sf = 448.0f * 0x1p-9f;
inline constexpr float clamp_e2m1_with_e4m3_sf = 6.0f * 0x1p-9f;

// One step of amax = max |x|, starting from 0: NaN is ignored, Inf counts as the largest finite fp32. Exact,
// so the order of the steps does not matter.
constexpr float amax_step(float amax, float x) {
  const float magnitude = abs_f32(x) > fp32_max ? fp32_max : abs_f32(x);
  return magnitude > amax ? magnitude : amax;
}

namespace detail {
constexpr float clamped_amax(float amax, float clamp_min, float floor) {
  float a = clamp_min > floor ? clamp_min : floor;
  if (amax > a) a = amax;
  return a > fp32_max ? fp32_max : a;
}
}  // namespace detail

constexpr scale scale_plain(float amax, float clamp_min, float max_q) {
  const float a = detail::clamped_amax(amax, clamp_min, max_q * 0x1p-126f);
  const float sf = a / max_q;
  return {sf, max_q / a, exponent_field(sf)};
}

constexpr scale scale_power_of_two(float amax, float clamp_min, float max_q) {
  const float a = detail::clamped_amax(amax, clamp_min, max_q * 0x1p-126f);
  const std::uint8_t e = power_of_two_exponent_ceil(a / max_q);
  return {ue8m0_to_float(e), ue8m0_to_float(static_cast<std::uint8_t>(254 - e)), e};
}

// The scale may round down, so value * sf_inv can exceed max_q; the encoders saturate. to_e4m3(sf) gives the
// stored code.
constexpr scale scale_e4m3(float amax, float clamp_min, float max_q) {
  const float a = detail::clamped_amax(amax, clamp_min, max_q * 0x1p-9f);
  const float sf = to_float(to_e4m3(a / max_q));
  return {sf, 1.0f / sf, exponent_field(sf)};
}

}  // namespace portile::numeric
