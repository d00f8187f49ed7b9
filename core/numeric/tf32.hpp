#pragma once

// TF32: an fp32 whose low 13 mantissa bits are zero (10 mantissa bits left).

#include "bits.hpp"

namespace portile::numeric {

// Round to nearest, ties away from zero, as PTX `cvt.rna.tf32.f32` does. Magnitudes that round past the
// largest tf32 become Inf, never NaN; Inf and NaN are returned unchanged, subnormals are rounded on their own
// grid.
constexpr float to_tf32_nearest(float x) {
  return is_finite(x) ? bits_float((float_bits(x) + 0x1000u) & ~0x1FFFu) : x;
}

// Toward zero: what a matrix unit does when it ignores the low bits. Inf and NaN are returned unchanged.
constexpr float to_tf32_truncate(float x) { return is_finite(x) ? bits_float(float_bits(x) & ~0x1FFFu) : x; }

}  // namespace portile::numeric
