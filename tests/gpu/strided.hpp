#pragma once
// Tensors with padded rows and odd addresses, and comparisons within a bound.
#include <cmath>

#include "gpu/against_reference.hpp"
#include "support/random.hpp"

namespace portile::test {

/// A tensor with unit last stride whose other strides may leave gaps of a multiple of `unit` elements, at an
/// address that may be odd.
inline tensor strided(memory& m, randomness& r, dtype type, std::vector<std::int64_t> extents,
                      std::int64_t unit = 1) {
  std::vector<std::int64_t> strides(extents.size(), 1);
  const bool aligned = r.one_in(2);
  for (std::size_t i = extents.size() - 1; i-- > 0;) {
    const std::int64_t gap = r.one_in(2) ? 0 : aligned ? 16 : r.pick<std::int64_t>({1, 3, 8, 16});
    strides[i] = numeric::align_up(strides[i + 1] * std::max<std::int64_t>(extents[i + 1], 1) + gap, unit);
  }
  const std::int64_t shift = aligned ? 0 : r.pick<std::int64_t>({0, 1, 2, 5});
  const tensor shape = make_tensor(nullptr, type, extents, strides);
  const tensor whole = m.make(type, {shape.span() + shift});
  return make_tensor(static_cast<char*>(whole.data) + shift * size_of(type), type, extents, strides);
}

/// Normal values and, unless `finite`, now and then special ones, in all of a tensor's span.
inline void fill_span(randomness& r, const tensor& t, bool finite = true, float scale = 1) {
  const tensor flat = make_tensor(t.data, t.dtype, {t.span()});
  r.fill(flat, finite);
  if (!finite) return;
  for (std::int64_t i = 0; i < t.span(); ++i) {
    const float v = scale * static_cast<float>(r.number(-4000, 4000)) / 1500.0f;
    if (t.dtype == dtype::f32)
      static_cast<float*>(t.data)[i] = v;
    else if (t.dtype == dtype::bf16)
      static_cast<numeric::bf16*>(t.data)[i] = numeric::to_bf16(v);
  }
}

/// |got - expected| <= relative * |expected| + absolute, element by element; NaN and infinities agree with
/// their like.
inline bool within(dtype type, const bytes& expected, const bytes& got, double relative, double absolute) {
  const auto value = [&](const bytes& b, std::size_t i) -> double {
    if (type == dtype::f32) {
      float v;
      std::memcpy(&v, b.data() + 4 * i, 4);
      return v;
    }
    numeric::bf16 v;
    std::memcpy(&v, b.data() + 2 * i, 2);
    return numeric::to_float(v);
  };
  for (std::size_t i = 0; i < expected.size() / static_cast<std::size_t>(size_of(type)); ++i) {
    const double e = value(expected, i), g = value(got, i);
    if (e == g || (std::isnan(e) && std::isnan(g))) continue;
    if (!(std::abs(g - e) <= relative * std::abs(e) + absolute)) {
      WARN("element " << i << ": expected " << e << ", got " << g);
      return false;
    }
  }
  return true;
}

}  // namespace portile::test
