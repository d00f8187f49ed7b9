#pragma once

// Stochastic rounding with bits that are a hash of the data and its position, so that equal inputs give equal
// outputs.
//
// |x| lies between neighbouring representable magnitudes lo <= |x| < hi. With frac = (|x| - lo) / (hi - lo),
// exact, and a 16-bit r the result is hi when frac + r / 2^16 >= 1, else lo; the sign is kept. All three
// saturate, Inf included (bf16 too: never Inf), and give the NaN code of the format's nearest-even conversion
// for a NaN.

#include "bf16.hpp"
#include "e2m1.hpp"
#include "e4m3.hpp"

namespace portile::numeric {

struct sr_words {
  std::uint32_t r0, r1;
};

namespace detail {
// Devices differ in the NaN that arithmetic makes, so all of them count as the same one.
constexpr std::uint32_t hashed_bits(std::uint32_t b) {
  return (b & fp32_abs_mask) > fp32_inf_bits ? float_bits(quiet_nan()) : b;
}
}  // namespace detail

// Random words of the quad of flat elements 4i .. 4i+3, whose fp32 bits are b0 .. b3 (bf16 widened). Modulo
// 2^32. r1 is needed for bf16 results only.
constexpr sr_words sr_hash(std::uint32_t b0, std::uint32_t b1, std::uint32_t b2, std::uint32_t b3,
                           std::uint32_t i) {
  b0 = detail::hashed_bits(b0);
  b1 = detail::hashed_bits(b1);
  b2 = detail::hashed_bits(b2);
  b3 = detail::hashed_bits(b3);
  std::uint32_t h = b0 * 0x5671D42Bu + b1 * 0x9995E499u + b2 * 0xACE1B8A5u + b3 * 0xE153538Du + i;
  h ^= h >> 23;
  h *= 0x7FEB352Du;
  h ^= h >> 16;
  std::uint32_t r0 = h * 0x846CA68Bu;
  std::uint32_t r1 = h * 0xD35A2D97u;
  r0 ^= r0 >> 11;
  r1 ^= r1 >> 11;
  return {r0, r1};
}

constexpr std::uint16_t bit_reverse16(std::uint16_t v) {
  std::uint32_t u = v;
  u = ((u >> 1) & 0x5555u) | ((u & 0x5555u) << 1);
  u = ((u >> 2) & 0x3333u) | ((u & 0x3333u) << 2);
  u = ((u >> 4) & 0x0F0Fu) | ((u & 0x0F0Fu) << 4);
  return static_cast<std::uint16_t>((u >> 8) | (u << 8));
}

// The 16 bits of element t (0..3) of a quad. bf16: halves of r0, then of r1.
constexpr std::uint16_t sr_slice_bf16(sr_words words, int t) {
  return static_cast<std::uint16_t>((t < 2 ? words.r0 : words.r1) >> (16 * (t & 1)));
}

// e4m3: each half of r0, then the same half with its bits reversed.
constexpr std::uint16_t sr_slice_e4m3(std::uint32_t r0, int t) {
  const auto half = static_cast<std::uint16_t>(r0 >> (16 * (t >> 1)));
  return (t & 1) != 0 ? bit_reverse16(half) : half;
}

// e2m1, bytes B0..B3 of r0: (B2, B0) and (B3, B1), each once as it is and once with all its bits reversed.
constexpr std::uint16_t sr_slice_e2m1(std::uint32_t r0, int t) {
  const std::uint32_t v = r0 >> (8 * (t >> 1));
  const auto pair = static_cast<std::uint16_t>((v & 0xFFu) | ((v >> 8) & 0xFF00u));
  return (t & 1) != 0 ? bit_reverse16(pair) : pair;
}

namespace detail {

template <int mantissa_bits, int bias>
constexpr std::uint32_t stochastic_code(std::uint32_t u, std::uint16_t r) {
  const on_grid g = place_on_grid<mantissa_bits, bias>(u);
  // units < 2^24, so beyond this shift frac < 2^-16 and no r can carry; the sums below stay within 64 bits.
  if (g.shift >= 40) return 0;
  const std::uint64_t units = g.units;
  const std::uint64_t truncated = units >> g.shift;
  const std::uint64_t remainder = units - (truncated << g.shift);
  const bool up = (remainder << 16) + (std::uint64_t{r} << g.shift) >= (std::uint64_t{1} << (16 + g.shift));
  return g.code_base + static_cast<std::uint32_t>(truncated) + (up ? 1u : 0u);
}

}  // namespace detail

constexpr bf16 stochastic_bf16(float x, std::uint16_t r) {
  if (is_nan(x)) return to_bf16(x);
  const std::uint32_t u = float_bits(x);
  const std::uint32_t code = detail::stochastic_code<7, 127>(u & fp32_abs_mask, r);
  return {static_cast<std::uint16_t>((u >> 31 << 15) | (code > 0x7F7Fu ? 0x7F7Fu : code))};
}

constexpr e4m3 stochastic_e4m3(float x, std::uint16_t r) {
  if (is_nan(x)) return to_e4m3(x);
  const std::uint32_t u = float_bits(x);
  const std::uint32_t code = detail::stochastic_code<3, 7>(u & fp32_abs_mask, r);
  return {static_cast<std::uint8_t>((u >> 31 << 7) | (code > 0x7Eu ? 0x7Eu : code))};
}

// A code 0..15, as to_e2m1.
constexpr std::uint8_t stochastic_e2m1(float x, std::uint16_t r) {
  if (is_nan(x)) return to_e2m1(x);
  const std::uint32_t u = float_bits(x);
  const std::uint32_t code = detail::stochastic_code<1, 1>(u & fp32_abs_mask, r);
  return static_cast<std::uint8_t>((u >> 31 << 3) | (code > 7u ? 7u : code));
}

}  // namespace portile::numeric
