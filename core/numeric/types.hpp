#pragma once

// Storage types: bits without arithmetic. Two values are equal when their bits are (so -0 != +0, and a NaN
// equals itself). The types have no default value, which lets them live in GPU shared memory and in
// uninitialised buffers.

#include <cstdint>

namespace portile::numeric {

// 1 sign, 8 exponent, 7 mantissa bits, bias 127: the upper half of an fp32.
struct bf16 {
  std::uint16_t bits;
  friend constexpr bool operator==(bf16 a, bf16 b) { return a.bits == b.bits; }
};

// IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits, bias 15.
struct f16 {
  std::uint16_t bits;
  friend constexpr bool operator==(f16 a, f16 b) { return a.bits == b.bits; }
};

// OCP FP8 E4M3: bias 7, largest value 448, no infinity, NaN = S.1111.111 only.
struct e4m3 {
  std::uint8_t bits;
  friend constexpr bool operator==(e4m3 a, e4m3 b) { return a.bits == b.bits; }
};

// FP8 E4M3 as on CDNA3: bias 8, largest value 240, no infinity, no negative zero, the only NaN is 0x80.
struct e4m3fnuz {
  std::uint8_t bits;
  friend constexpr bool operator==(e4m3fnuz a, e4m3fnuz b) { return a.bits == b.bits; }
};

// OCP FP8 E5M2: bias 15, largest value 57344, infinities and NaNs as in IEEE 754.
struct e5m2 {
  std::uint8_t bits;
  friend constexpr bool operator==(e5m2 a, e5m2 b) { return a.bits == b.bits; }
};

// Two OCP FP4 E2M1 codes: the even element in the low nibble, the odd one in the high nibble.
struct e2m1x2 {
  std::uint8_t bits;
  constexpr std::uint8_t low() const { return bits & 0xFu; }
  constexpr std::uint8_t high() const { return static_cast<std::uint8_t>(bits >> 4); }
  friend constexpr bool operator==(e2m1x2 a, e2m1x2 b) { return a.bits == b.bits; }
};

// One byte of packed E5M6 storage: 12 such bytes hold 8 values (see e5m6.hpp).
struct e5m6x8 {
  std::uint8_t bits;
  friend constexpr bool operator==(e5m6x8 a, e5m6x8 b) { return a.bits == b.bits; }
};

// Four scale exponents (see ue8m0.hpp): byte j, counted from the least significant, is the j-th of four
// scales.
struct ue8m0x4 {
  std::uint32_t bits;
  constexpr std::uint8_t byte(int j) const { return static_cast<std::uint8_t>(bits >> (8 * j)); }
  constexpr void set_byte(int j, std::uint8_t value) {
    bits = (bits & ~(std::uint32_t{0xFF} << (8 * j))) | (std::uint32_t{value} << (8 * j));
  }
  friend constexpr bool operator==(ue8m0x4 a, ue8m0x4 b) { return a.bits == b.bits; }
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2 && sizeof(e4m3) == 1 && sizeof(e4m3fnuz) == 1);
static_assert(sizeof(e5m2) == 1 && sizeof(e2m1x2) == 1 && sizeof(e5m6x8) == 1 && sizeof(ue8m0x4) == 4);

}  // namespace portile::numeric
