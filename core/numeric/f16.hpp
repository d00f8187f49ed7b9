#pragma once

#include "bits.hpp"
#include "types.hpp"

namespace portile::numeric {

// fp32 -> fp16, round to nearest, ties to even. |x| >= 65520 becomes Inf; every NaN becomes 0x7E00.
constexpr f16 to_f16(float x) {
  if (is_nan(x)) return {0x7E00};
  const std::uint32_t u = float_bits(x);
  const std::uint32_t code = detail::nearest_even_code<10, 15>(u & fp32_abs_mask);
  return {static_cast<std::uint16_t>((u >> 31 << 15) | (code > 0x7C00u ? 0x7C00u : code))};
}

// fp32 -> fp16 toward zero: a finite x never becomes Inf but +-65504. Inf stays Inf; every NaN becomes
// 0x7E00.
constexpr f16 to_f16_rtz(float x) {
  if (is_nan(x)) return {0x7E00};
  const std::uint32_t u = float_bits(x);
  const detail::on_grid g = detail::place_on_grid<10, 15>(u & fp32_abs_mask);
  std::uint32_t code = g.shift > 24 ? 0 : g.code_base + (g.units >> g.shift);
  if (code > 0x7BFFu) code = is_finite(x) ? 0x7BFFu : 0x7C00u;
  return {static_cast<std::uint16_t>((u >> 31 << 15) | code)};
}

// Exact. Inf decodes as Inf, every NaN as the quiet NaN of bits.hpp.
constexpr float to_float(f16 x) {
  const bool negative = (x.bits & 0x8000u) != 0;
  const std::uint32_t code = x.bits & 0x7FFFu;
  if (code > 0x7C00u) return quiet_nan();
  if (code == 0x7C00u) return detail::with_sign(infinity(), negative);
  return detail::with_sign(detail::code_magnitude<10, 15>(code), negative);
}

}  // namespace portile::numeric
