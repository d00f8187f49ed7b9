#pragma once

// Normal numbers from random words by Box-Muller, from fp32 operations and fma only, so that every device
// computes the same bits.

#include "elementary.hpp"
#include "philox.hpp"

namespace portile::numeric {

// ln(u) for 0 < u <= 1, u normal. u = 2^k m with m about in [0.707, 1.414]; m - 1 is exact.
template <class F = float>
constexpr F log_f32(F u) {
  const std::uint32_t shift = (float_bits(u) - 0x3F350000u) & 0xFF800000u;
  const F k = static_cast<F>(static_cast<std::int32_t>(shift) / (1 << 23));
  const F m = bits_float(float_bits(u) - shift);
  return ::fmaf(k, detail::ln2_high, ::fmaf(k, detail::ln2_low, log1p_f32(m - 1.0f)));
}

struct sine_cosine {
  float sine, cosine;
};

// Sine and cosine of 2 pi v for 0 <= v <= 1. v minus the nearest quarter is exact, so only the small angle
// rounds.
template <class F = float>
constexpr sine_cosine sincos_turns_f32(F v) {
  const int quarter = static_cast<int>(4.0f * v + 0.5f);
  const F x = (v - 0.25f * static_cast<F>(quarter)) * 0x1.921fb6p+2f;
  const F xx = x * x;
  // Minimax polynomials on |x| <= pi / 4 (Cephes).
  F s = ::fmaf(-1.9515295891e-4f, xx, 8.3321608736e-3f);
  s = ::fmaf(s, xx, -1.6666654611e-1f);
  s = ::fmaf(s * xx, x, x);
  F c = ::fmaf(2.443315711809948e-5f, xx, -1.388731625493765e-3f);
  c = ::fmaf(c, xx, 4.166664568298827e-2f);
  c = ::fmaf(c * xx, xx, ::fmaf(-0.5f, xx, 1.0f));
  switch (quarter & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

struct four_normals {
  float z[4];
};

// Words 0, 1 give the first two numbers, words 2, 3 the others. The uniform numbers are in (0, 1], so every
// result is finite (at most 6.8 in magnitude).
constexpr four_normals box_muller(philox_words words) {
  four_normals n{};
  for (int i = 0; i < 4; i += 2) {
    const float radius = ::sqrtf(-2.0f * log_f32(uniform_f32(words.w[i])));
    const sine_cosine angle = sincos_turns_f32(uniform_f32(words.w[i + 1]));
    n.z[i] = radius * angle.cosine;
    n.z[i + 1] = radius * angle.sine;
  }
  return n;
}

}  // namespace portile::numeric
