#pragma once
// The matrix instructions of CDNA as shapes and lane maps: which element of a factor or of the result a lane
// holds, and where. All of them multiply a Rows x Depth by a Depth x Rows matrix and add to Rows x Rows fp32
// sums that lie across the 64 lanes of a wave. The maps are those of AMD's instruction set manuals ("AMD
// Instinct MI300 Instruction Set Architecture", chapter on matrix arithmetic) and of AMD's matrix instruction
// calculator. Compiled, never run: proven by tests/hip on the host.
#include <cstdint>

#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/e4m3.hpp>

namespace portile::hip {

/// fp32 whose low 13 bits are 0.
struct tf32 {
  float value;
};
/// The e4m3 of gfx942: one exponent step below the OCP code of the same bits, 0x80 its only NaN, no -0.
struct e4m3_fnuz {
  std::uint8_t bits;
};

/// Row and column of an element.
struct place {
  int row, col;
  constexpr bool operator==(const place&) const = default;
};

template <class Factor, int Rows, int Depth>
struct atom {
  using factor = Factor;
  static constexpr int wave = 64, rows = Rows, cols = Rows, depth = Depth;
  static constexpr int groups = wave / rows;     ///< lanes that hold the same row, at different channels
  static constexpr int values = depth / groups;  ///< of each factor, in a lane
  static constexpr int words = values * static_cast<int>(sizeof(Factor)) / 4;  ///< the registers they fill
  static constexpr int results = rows * cols / wave;

  /// Where the i-th value of a lane lies in a (row, channel), and in b (channel, column).
  static constexpr place a(int lane, int i) { return {lane % rows, lane / rows * values + i}; }
  static constexpr place b(int lane, int i) { return {lane / rows * values + i, lane % rows}; }
  /// Where the i-th result of a lane lies: four rows, then those four of the next groups.
  static constexpr place result(int lane, int i) {
    return {i / 4 * 4 * groups + lane / rows * 4 + i % 4, lane % rows};
  }
};

using bf16_32x32x8 = atom<numeric::bf16, 32, 8>;    ///< gfx90a, gfx942, gfx950
using bf16_16x16x16 = atom<numeric::bf16, 16, 16>;  ///< gfx90a, gfx942, gfx950
using bf16_32x32x16 = atom<numeric::bf16, 32, 16>;  ///< gfx950
using bf16_16x16x32 = atom<numeric::bf16, 16, 32>;  ///< gfx950
using f32_32x32x2 = atom<float, 32, 2>;             ///< gfx90a, gfx942, gfx950
using f32_16x16x4 = atom<float, 16, 4>;             ///< gfx90a, gfx942, gfx950
using xf32_32x32x4 = atom<tf32, 32, 4>;             ///< gfx942
using xf32_16x16x8 = atom<tf32, 16, 8>;             ///< gfx942
using fnuz_32x32x16 = atom<e4m3_fnuz, 32, 16>;      ///< gfx942
using fnuz_16x16x32 = atom<e4m3_fnuz, 16, 32>;      ///< gfx942
using e4m3_32x32x16 = atom<numeric::e4m3, 32, 16>;  ///< gfx950
using e4m3_16x16x32 = atom<numeric::e4m3, 16, 32>;  ///< gfx950

/// Four OCP e4m3 codes as the fnuz codes of half their values. NaN stays NaN, and -0 becomes 0: the only
/// codes whose bits change.
constexpr std::uint32_t to_fnuz(std::uint32_t codes) {
  // 0x80 in the bytes whose low seven bits are all ones, and in those where they are all zeros.
  const std::uint32_t low = codes & 0x7F7F7F7Fu;
  const std::uint32_t nan = (low + 0x01010101u) & 0x80808080u, number = (low + 0x7F7F7F7Fu) & 0x80808080u;
  const std::uint32_t nan_bytes = (nan << 1) - (nan >> 7);  // 0xFF there
  return (((codes & 0x80808080u & number) | low) & ~nan_bytes) | nan;
}

/// Four e2m1 codes, the first one in the low nibble, as e4m3 codes of the same values. A code's exponent and
/// mantissa bits are e4m3's with another bias, but for 0.5, which is subnormal only in e2m1.
constexpr std::uint32_t e2m1_as_e4m3(std::uint32_t codes) {
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t code = codes >> (4 * i) & 15u, magnitude = code & 7u;
    const std::uint32_t bits = magnitude == 0 ? 0u : magnitude == 1 ? 0x30u : (magnitude << 2) + 0x30u;
    result |= (bits | (code & 8u) << 4) << (8 * i);
  }
  return result;
}

/// The value of a factor's bits.
constexpr float to_float(numeric::bf16 x) { return numeric::to_float(x); }
constexpr float to_float(numeric::e4m3 x) { return numeric::to_float(x); }
constexpr float to_float(float x) { return x; }
constexpr float to_float(tf32 x) { return x.value; }
constexpr float to_float(e4m3_fnuz x) {
  if (x.bits == 0x80) return numeric::bits_float(0x7FC00000u);
  const int exponent = x.bits >> 3 & 15, mantissa = x.bits & 7;
  float v =
      static_cast<float>(exponent ? 8 + mantissa : mantissa);  // times 2^(exponent - 11), at least 2^-10
  for (int e = exponent ? exponent : 1; e < 11; ++e) v *= 0.5f;
  for (int e = 11; e < exponent; ++e) v *= 2.0f;
  return x.bits & 0x80 ? -v : v;
}

}  // namespace portile::hip
