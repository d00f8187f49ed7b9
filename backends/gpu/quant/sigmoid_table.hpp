#pragma once
// Sigmoid and SiLU by a table where the left half of x has few values: e4m3 codes times a power of two.
#include "backends/gpu/quant/swiglu.hpp"

namespace portile::gpu {

/// Both functions in shared memory, at the highest 12 bits of their argument: its sign, exponent, and the
/// three bits that the mantissa of a code has.
class sigmoid_table {
  static constexpr int shift = 20;
  static constexpr float least_sf = 0x1p-18f, largest_sf = 0x1p+8f;
  static constexpr int place_of(float x) { return static_cast<int>(numeric::float_bits(x) >> shift); }

 public:
  static constexpr int entries = 4096;
  static constexpr std::size_t shared_bytes = 2 * entries * sizeof(float);

  explicit PORTILE_DEVICE sigmoid_table(float* shared) : sigmoid_(shared), silu_(shared + entries) {}

  /// True when the table has all codes times this scale.
  static PORTILE_DEVICE bool takes(float sf) {
    const std::uint32_t bits = numeric::float_bits(sf);
    return (bits & 0x7FFFFFu) == 0 && bits - numeric::float_bits(least_sf) <=
                                          numeric::float_bits(largest_sf) - numeric::float_bits(least_sf);
  }
  /// Sets the entries that such products have; no barrier.
  template <class Block>
  PORTILE_DEVICE void fill(const Block& block) const {
    constexpr int first = place_of(least_sf * 0x1p-9f), last = place_of(largest_sf * 512.0f) - 1;
    constexpr int nans = place_of(numeric::infinity());
    // Zero, all normal numbers, NaN.
    for (int i = block.thread(); i < 2 * (last - first + 10); i += Block::threads) {
      const int n = i / 2;
      const int at = n == 0 ? 0 : n <= last - first + 1 ? first + n - 1 : nans + n - (last - first + 2);
      const int place = at + i % 2 * (entries / 2);
      const float l =
          numeric::bits_float(static_cast<std::uint32_t>(place) << shift | (at == nans ? 1u : 0u));
      const float t = one_plus_exp_minus(l);
      sigmoid_[place] = 1.0f / t;
      silu_[place] = l / t;
    }
  }
  PORTILE_DEVICE float sigmoid(float l) const { return sigmoid_[numeric::float_bits(l) >> shift]; }
  PORTILE_DEVICE float silu(float l) const { return silu_[numeric::float_bits(l) >> shift]; }

 private:
  float *sigmoid_, *silu_;
};

}  // namespace portile::gpu
