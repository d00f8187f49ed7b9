#pragma once
// Random problems from a seed: shapes, strides, byte offsets and values that include the awkward ones.
#include <initializer_list>
#include <random>
#include <vector>

#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/scale.hpp>

#include "support/memory.hpp"

namespace portile::test {

class randomness {
 public:
  explicit randomness(unsigned seed) : rng_(seed) {}

  std::int64_t number(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(rng_);
  }
  bool one_in(int n) { return number(1, n) == 1; }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return list.begin()[number(0, static_cast<std::int64_t>(list.size()) - 1)];
  }

  /// rows x values: contiguous, or with padded rows, or at an odd address; `values` counts values, not stored
  /// elements.
  tensor matrix(memory& m, dtype type, std::int64_t rows, std::int64_t values) {
    const std::int64_t width = stored_extent(type, values);
    const std::int64_t pitch = one_in(2) ? width : width + pick<std::int64_t>({1, 3, 8, 16, 64});
    const std::int64_t shift = one_in(2) ? 0 : pick<std::int64_t>({1, 2, 4, 16});
    tensor whole = m.make(type, {rows > 0 ? (rows - 1) * pitch + width + shift : 0});
    tensor t = make_tensor(static_cast<char*>(whole.data) + (rows > 0 ? shift * size_of(type) : 0), type,
                           {rows, width}, {pitch, 1});
    return t;
  }

  /// Values for f32, bf16, e4m3 and e2m1x2: normal ones on a scale of their own in each row, zeros, and now
  /// and then what is special. Every fifth call has special values only.
  void fill(const tensor& t, bool finite = false) {
    const bool wild = one_in(5);
    for (std::int64_t i = 0; i < (t.rank > 1 ? t.extent(0) : 1); ++i) {
      const float scale = std::ldexp(1.0f, static_cast<int>(number(-20, 20)));
      const bool zero_row = one_in(8);
      const std::int64_t row = t.rank > 1 ? i * t.stride(0) : 0;
      for (std::int64_t j = 0; j < t.extent(t.rank - 1); ++j) {
        float v = zero_row ? 0.0f : std::normal_distribution<float>()(rng_) * scale;
        if (!finite && (wild || one_in(200))) v = special();
        store(t, row + j, v, finite);
      }
    }
  }
  /// Scales for f32, e4m3 and ue8m0x4: positive, mostly moderate.
  void fill_scales(const tensor& t) {
    for (std::int64_t i = 0; i < t.span(); ++i) {
      const int e = static_cast<int>(number(-6, 6));
      if (t.dtype == dtype::f32)
        static_cast<float*>(t.data)[i] = std::ldexp(one_in(2) ? 1.0f : 1.25f, one_in(30) ? 20 * e : e);
      else if (t.dtype == dtype::e4m3)
        static_cast<std::uint8_t*>(t.data)[i] = static_cast<std::uint8_t>(number(1, 0x7E));
      else
        static_cast<std::uint32_t*>(t.data)[i] = static_cast<std::uint32_t>(0x7F7F7F7F + 0x01010101 * e) ^
                                                 static_cast<std::uint32_t>(number(0, 3) << 8);
    }
  }
  float special() {
    const std::uint32_t bits = pick<std::uint32_t>(
        {0u, 0x80000000u, 0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC00001u, 0x7F800001u, 1u, 0x80000001u,
         0x007FFFFFu, 0x00800000u, 0x7F7FFFFFu, 0xFF7FFFFFu, 0x3F800000u, 0x3F800001u, 0x41200000u});
    return one_in(3) ? numeric::bits_float(static_cast<std::uint32_t>(rng_())) : numeric::bits_float(bits);
  }

 private:
  void store(const tensor& t, std::int64_t i, float v, bool finite) {
    switch (t.dtype) {
      case dtype::f32:
        static_cast<float*>(t.data)[i] = v;
        return;
      case dtype::bf16:
        static_cast<std::uint16_t*>(t.data)[i] = static_cast<std::uint16_t>(numeric::float_bits(v) >> 16);
        return;
      case dtype::e4m3: {
        const auto code = static_cast<std::uint8_t>(rng_());
        static_cast<std::uint8_t*>(t.data)[i] =
            (code & 0x7F) == 0x7F && (finite || !one_in(20)) ? std::uint8_t{0x38} : code;
        return;
      }
      default:
        static_cast<std::uint8_t*>(t.data)[i] = static_cast<std::uint8_t>(rng_());
        return;
    }
  }
  std::mt19937 rng_;
};

}  // namespace portile::test
