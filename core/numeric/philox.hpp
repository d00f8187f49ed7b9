#pragma once

// Counter-based random words: Philox4x32-10 of Salmon, Moraes, Dror and Shaw (SC11). Same counter and key,
// same words.

#include <cstdint>

#include <math.h>

namespace portile::numeric {

struct philox_words {
  std::uint32_t w[4];
};

struct philox_key {
  std::uint32_t k[2];
};

constexpr philox_words philox4x32_10(philox_words counter, philox_key key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter.w[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter.w[2];
    counter = {
        {static_cast<std::uint32_t>(p1 >> 32) ^ counter.w[1] ^ key.k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ counter.w[3] ^ key.k[1], static_cast<std::uint32_t>(p0)}};
    key.k[0] += 0x9E3779B9u;
    key.k[1] += 0xBB67AE85u;
  }
  return counter;
}

// Four words of the stream (seed, subsequence) at block `offset`: the counter is (offset, subsequence), the
// key the seed, 64 bits each, low half first.
constexpr philox_words philox4x32_10(std::uint64_t seed, std::uint64_t subsequence, std::uint64_t offset) {
  return philox4x32_10(
      philox_words{{static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32),
                    static_cast<std::uint32_t>(subsequence), static_cast<std::uint32_t>(subsequence >> 32)}},
      philox_key{{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}});
}

// A word as fp32 in (0, 1]: fma(fp32(w), 2^-32, 2^-33). Never 0, so its logarithm is finite.
template <class F = float>
constexpr F uniform_f32(std::uint32_t w) {
  return ::fmaf(static_cast<F>(w), F(0x1p-32f), F(0x1p-33f));
}

// Mixes the bits of a small seed; modulo 2^32.
constexpr std::uint32_t seed_mix(std::uint32_t s) {
  s += 0x9E3779B9u;
  s ^= s >> 16;
  s *= 0x21F0AAADu;
  s ^= s >> 15;
  s *= 0x735A2D97u;
  s ^= s >> 15;
  return s;
}

}  // namespace portile::numeric
