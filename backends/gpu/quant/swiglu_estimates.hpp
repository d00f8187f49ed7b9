#pragma once
// Activations estimated in a third of the steps, and which of them the estimates do not tell.
#include <algorithm>

#include "backends/gpu/quant/swiglu.hpp"

namespace portile::gpu {

/// SiLU of l with errors that add up to the bounds of swiglu_bounds.
PORTILE_DEVICE float silu_estimate(float l) {
  return l * reciprocal_estimate(1.0f + exp2_estimate(l * -0x1.715476p+0f));
}

/// Where an estimate of the weighted activation tells its rounded value. For |l| <= left, |r| <= right and
/// |w| <= 2^20 the estimate is within `error` of the value, relative to it. In units of 2^-24, l having 1.22
/// |l| through the argument of 2^x: 8 from the two estimates, 2 from the sum and the quotient, 3.6 from the
/// rounding of the value's own steps, 4 from the two products on both sides, 1 from the bounds' own product;
/// and for e4m3 2 from a scale that is no power of two, on both sides. Only products below the normal numbers
/// are less exact. They come out as codes of 0, and where results of that size have bits of their own, values
/// below 2^-60 are not taken from estimates.
struct swiglu_bounds {
  float left, right, error;
};
inline constexpr swiglu_bounds swiglu_to_e4m3{20.0f, 0x1p60f, 48 * 0x1p-24f},
    swiglu_to_bf16{10.5f, 0x1p16f, 32 * 0x1p-24f};

/// The bounds as a lane looks at them: of its sums of squares. A sum is at least its largest term but for the
/// rounding of the latter.
struct swiglu_limits {
  float left = 0, right = 0;

  swiglu_limits() = default;
  /// Values that the clamp cuts are not estimated.
  swiglu_limits(const swiglu_bounds& bounds, const swiglu_clamp& clamp)
      : left(square_below(bounds.left, clamp)), right(square_below(bounds.right, clamp)) {}
  template <int n>
  PORTILE_DEVICE bool hold(const std::uint32_t (&l)[n], const std::uint32_t (&r)[n]) const {
    std::uint32_t l2 = 0, r2 = 0;
    PORTILE_UNROLL
    for (int i = 0; i < n; ++i) {
      l2 = fma_bf16x2(l[i], l[i], l2);
      r2 = fma_bf16x2(r[i], r[i], r2);
    }
    return bf16_low(l2) < left && bf16_high(l2) < left && bf16_low(r2) < right && bf16_high(r2) < right;
  }

 private:
  static float square_below(float bound, const swiglu_clamp& clamp) {
    if (clamp.on) bound = std::min(bound, clamp.value);
    return bound * bound * (1.0f - 0x1p-8f);
  }
};

/// The activation itself, in short steps for nearly all values.
PORTILE_DEVICE float exact_activation(const swiglu_clamp& clamp, float l, float r) {
  return clamp.is_near(::fabsf(l), ::fabsf(r)) ? swiglu_near(l).silu * r : clamp.activation(l, r);
}

/// Eight weighted activations in bf16.
struct swiglu_eight {
  std::uint32_t out[4];
  std::uint32_t unsure = 0;  ///< bit i: value i is not told

  PORTILE_DEVICE swiglu_eight(const std::uint32_t (&l)[4], const std::uint32_t (&r)[4], float weight,
                              const swiglu_limits& limits) {
    // The middle between two bf16 and the error around it, in units of the last place of fp32; one more for
    // the carry of a lower half.
    constexpr auto around = static_cast<std::uint32_t>(swiglu_to_bf16.error * 0x1p+24f) + 1u;
    constexpr std::uint32_t shift = (0x8000u + around) * 0x10001u, close = 2 * around + 1;
    constexpr std::uint32_t tiny = numeric::float_bits(0x1p-60f) >> 16;
    std::uint32_t low[4], nearest = ~0u, smallest = ~0u;
    PORTILE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float a = silu_estimate(bf16_low(l[i])) * bf16_low(r[i]) * weight;
      const float b = silu_estimate(bf16_high(l[i])) * bf16_high(r[i]) * weight;
      out[i] = numbers_to_bf16x2(a, b);
      low[i] = byte_permute(numeric::float_bits(a), numeric::float_bits(b), 0x5410u) + shift;
      nearest = min_u16x2(nearest, low[i]);
      smallest = min_u16x2(smallest, out[i] & 0x7FFF7FFFu);
    }
    const bool within = limits.hold(l, r) && ::fabsf(weight) <= 0x1p20f;
    if (within && smaller_half(nearest) > close && smaller_half(smallest) >= tiny) return;
    PORTILE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const auto half = [&](std::uint32_t pair) { return pair >> (i % 2 * 16) & 0xFFFFu; };
      const bool is_zero = (half(l[i / 2]) & 0x7FFFu) == 0 || (half(r[i / 2]) & 0x7FFFu) == 0 || weight == 0;
      const bool told =
          within && half(low[i / 2]) > close && ((half(out[i / 2]) & 0x7FFFu) >= tiny || is_zero);
      unsure |= std::uint32_t{!told} << i;
    }
  }

 private:
  static PORTILE_DEVICE std::uint32_t smaller_half(std::uint32_t pair) {
    const std::uint32_t low = pair & 0xFFFFu, high = pair >> 16;
    return low < high ? low : high;
  }
};

}  // namespace portile::gpu
