#pragma once
// e4m3 codes times powers of two by packed fp16, which holds all such products that do not round to zero.
#include "backends/gpu/values.hpp"

namespace portile::gpu {

/// Codes of e4m3 times a power of two.
class e4m3_rescaler {
 public:
  /// fp16 has these powers, and their products with all codes exactly, or they saturate.
  static PORTILE_DEVICE bool takes(float factor) {
    const std::uint32_t bits = numeric::float_bits(factor), least = numeric::float_bits(0x1p-14f);
    return (bits & 0x7FFFFFu) == 0 && bits - least <= numeric::float_bits(0x1p+15f) - least;
  }
  explicit PORTILE_DEVICE e4m3_rescaler(float factor)
      : factor_(((numeric::float_bits(factor) >> 13) - (112u << 10)) * 0x10001u) {}
  /// Four codes.
  PORTILE_DEVICE std::uint32_t operator()(std::uint32_t codes) const {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 890
    std::uint32_t out;
    asm("{\n"
        ".reg .b16 lo, hi;\n"
        ".reg .b32 a, b;\n"
        "mov.b32 {lo, hi}, %1;\n"
        "cvt.rn.f16x2.e4m3x2 a, lo;\n"
        "cvt.rn.f16x2.e4m3x2 b, hi;\n"
        "mul.rn.f16x2 a, a, %2;\n"
        "mul.rn.f16x2 b, b, %2;\n"
        "cvt.rn.satfinite.e4m3x2.f16x2 lo, a;\n"
        "cvt.rn.satfinite.e4m3x2.f16x2 hi, b;\n"
        "mov.b32 %0, {lo, hi};\n"
        "}"
        : "=r"(out)
        : "r"(codes), "r"(factor_));
    return out;
#else
    const float factor = numeric::to_float(numeric::f16{static_cast<std::uint16_t>(factor_)});
    float v[4];
    from_e4m3x2(static_cast<std::uint16_t>(codes), v[0], v[1]);
    from_e4m3x2(static_cast<std::uint16_t>(codes >> 16), v[2], v[3]);
    return to_e4m3x4(v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor);
#endif
  }

 private:
  std::uint32_t factor_;  ///< twice, as fp16
};

}  // namespace portile::gpu
