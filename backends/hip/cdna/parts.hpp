#pragma once
// What each CDNA part multiplies which factors with, and how it gets them.
#include "backends/gpu/gemm/tile.hpp"
#include "backends/hip/mfma/instruction.hpp"
#include "backends/hip/mfma/lds.hpp"
#include "backends/hip/mfma/order.hpp"

namespace portile::hip {

/// Factors of type A and B as a part takes them: the instruction, and what the sums are times too small.
template <class Atom, int Factor = 1>
struct recipe {
  using atom = Atom;
  static constexpr float missing = Factor;
};

/// True when this compilation is for the part, so that its instructions are there. Kernels of other parts
/// stop.
#if defined(PORTILE_EMULATOR)
constexpr bool compiling_for(std::string_view) { return true; }
#elif defined(__gfx90a__)
constexpr bool compiling_for(std::string_view part) { return part == "gfx90a"; }
#elif defined(__gfx942__)
constexpr bool compiling_for(std::string_view part) { return part == "gfx942"; }
#elif defined(__gfx950__)
constexpr bool compiling_for(std::string_view part) { return part == "gfx950"; }
#else
constexpr bool compiling_for(std::string_view) { return false; }
#endif

// How each part multiplies factors that the problem has as the argument's type, and how many chiplets share
// its blocks.
struct gfx90a {
  static constexpr const char* name = "gfx90a";
  static constexpr int dies = 1;
  static recipe<bf16_32x32x8> for_factor(numeric::bf16);
  static recipe<f32_32x32x2> for_factor(float);
  static recipe<bf16_32x32x8> for_factor(
      numeric::e4m3);  ///< no fp8 instructions; bf16 holds the values exactly
};
struct gfx942 {
  static constexpr const char* name = "gfx942";
  static constexpr int dies = 8;
  static recipe<bf16_32x32x8> for_factor(numeric::bf16);
  static recipe<xf32_32x32x4> for_factor(float);
  static recipe<fnuz_32x32x16, 4> for_factor(numeric::e4m3);  ///< both factors are half of what they were
};
struct gfx950 {
  static constexpr const char* name = "gfx950";
  static constexpr int dies = 8;
  static recipe<bf16_32x32x16> for_factor(numeric::bf16);
  static recipe<f32_32x32x2> for_factor(float);
  static recipe<e4m3_32x32x16> for_factor(numeric::e4m3);
};

/// Sixteen bytes of LDS out of the factor's own values, and how many those are.
template <class Atom>
inline constexpr int chunk_values = chunk_bytes / static_cast<int>(sizeof(typename Atom::factor));

/// Values `k` .. `k` + chunk_values<Atom> - 1 of a row of `columns` as factors of the atom; zeros behind the
/// row's end.
template <class Atom, class T>
PORTILE_DEVICE gpu::words4 load_chunk(const T* row, std::int64_t k, std::int64_t columns, bool aligned,
                                      bool truncate) {
  using factor = typename Atom::factor;
  constexpr int count = chunk_values<Atom>;
  gpu::words4 w{};
  if constexpr (std::is_same_v<T, numeric::bf16> ||
                (std::is_same_v<T, numeric::e4m3> && sizeof(factor) == 1)) {
    // The bits as they are.
    if (aligned && k + count <= columns) {
      w = gpu::load16(row + k);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < count; ++i)
        if (k + i < columns)
          w.w[i * sizeof(T) / 4] |= std::uint32_t{row[k + i].bits} << (i * sizeof(T) % 4 * 8);
    }
  } else if constexpr (std::is_same_v<T, numeric::e2m1x2> && sizeof(factor) == 1) {
    std::uint32_t codes[2] = {};
    if (aligned && k + count <= columns) {
      const gpu::words2 both = gpu::load8(row + k / 2);
      codes[0] = both.w[0], codes[1] = both.w[1];
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < count / 2; ++i)
        if (k + 2 * i < columns) codes[i / 4] |= std::uint32_t{row[k / 2 + i].bits} << (i % 4 * 8);
    }
    PORTILE_UNROLL
    for (int i = 0; i < 4; ++i) w.w[i] = e2m1_as_e4m3(codes[i / 2] >> (i % 2 * 16));
  } else {
    float v[count] = {};
    if (aligned && k + count <= columns) {
      gpu::load_values<T, count>(row, k, v);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < count; ++i)
        if (k + i < columns) v[i] = gpu::load_value(row, k + i);
    }
    PORTILE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(factor) == 4)
        w.w[i] =
            numeric::float_bits(truncate ? numeric::to_tf32_truncate(v[i]) : numeric::to_tf32_nearest(v[i]));
      else
        w.w[i] = gpu::to_bf16x2(v[2 * i], v[2 * i + 1]);  // exact
    }
  }
  if constexpr (std::is_same_v<factor, e4m3_fnuz>) {
    PORTILE_UNROLL
    for (int i = 0; i < 4; ++i) w.w[i] = to_fnuz(w.w[i]);
  }
  return w;
}
/// What the address of an aligned row is a multiple of.
template <class Atom, class T>
constexpr std::int64_t chunk_alignment() {
  return gpu::load_alignment<T, chunk_values<Atom>>();
}

}  // namespace portile::hip
