#pragma once
// e4m3 codes times powers of two by packed fp16, which holds all such products that do not round to zero.
#include "backends/gpu/values.hpp"

namespace portile::gpu {

/// Two e4m3 codes as fp16, exactly.
PORTILE_DEVICE std::uint32_t e4m3x2_to_f16x2(std::uint16_t codes) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 890
  std::uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
  return pair;
#else
  float first, second;
  from_e4m3x2(codes, first, second);
  return std::uint32_t{numeric::to_f16(first).bits} | std::uint32_t{numeric::to_f16(second).bits} << 16;
#endif
}
/// Two fp16 as e4m3 codes.
PORTILE_DEVICE std::uint16_t f16x2_to_e4m3x2(std::uint32_t pair) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 890
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(codes) : "r"(pair));
  return codes;
#else
  float first, second;
  from_f16x2(pair, first, second);
  return to_e4m3x2(first, second);
#endif
}
/// Products of two pairs of fp16.
PORTILE_DEVICE std::uint32_t mul_f16x2(std::uint32_t a, std::uint32_t b) {
#if defined(PORTILE_GPU_CUDA)
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(a) : "r"(a), "r"(b));
  return a;
#else
  float a0, a1, b0, b1;
  from_f16x2(a, a0, a1);
  from_f16x2(b, b0, b1);
  return std::uint32_t{numeric::to_f16(a0 * b0).bits} | std::uint32_t{numeric::to_f16(a1 * b1).bits} << 16;
#endif
}
/// The larger of `amax` and the magnitudes in `pair`, NaN ignored.
PORTILE_DEVICE std::uint32_t amax_f16x2(std::uint32_t amax, std::uint32_t pair) {
  pair &= 0x7FFF7FFFu;
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  asm("max.f16x2 %0, %1, %2;" : "=r"(amax) : "r"(amax), "r"(pair));
  return amax;
#else
  // Magnitudes are in the order of their bits, and a NaN is above Inf.
  const auto half = [](std::uint32_t a, std::uint32_t x) { return x > a && x <= 0x7C00u ? x : a; };
  return half(amax & 0xFFFFu, pair & 0xFFFFu) | half(amax >> 16, pair >> 16) << 16;
#endif
}
/// A power of two from 2^-14 to 2^15, twice, as fp16.
PORTILE_DEVICE std::uint32_t power_f16x2(float power) {
  return ((numeric::float_bits(power) >> 13) - (112u << 10)) * 0x10001u;
}

/// Codes of e4m3 times a power of two.
class e4m3_rescaler {
 public:
  /// fp16 has these powers, and their products with all codes exactly, or they saturate.
  static PORTILE_DEVICE bool takes(float factor) {
    const std::uint32_t bits = numeric::float_bits(factor), least = numeric::float_bits(0x1p-14f);
    return (bits & 0x7FFFFFu) == 0 && bits - least <= numeric::float_bits(0x1p+15f) - least;
  }
  explicit PORTILE_DEVICE e4m3_rescaler(float factor) : factor_(power_f16x2(factor)) {}
  /// Four codes.
  PORTILE_DEVICE std::uint32_t operator()(std::uint32_t codes) const {
    return std::uint32_t{two(static_cast<std::uint16_t>(codes))} |
           std::uint32_t{two(static_cast<std::uint16_t>(codes >> 16))} << 16;
  }

 private:
  PORTILE_DEVICE std::uint16_t two(std::uint16_t codes) const {
    return f16x2_to_e4m3x2(mul_f16x2(e4m3x2_to_f16x2(codes), factor_));
  }

  std::uint32_t factor_;  ///< twice, as fp16
};

}  // namespace portile::gpu
