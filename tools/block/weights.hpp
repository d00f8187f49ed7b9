#pragma once
#include <cmath>
#include <cstdint>

#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/philox.hpp>

namespace portile::block {

/// Weights from a fixed seed: element i of a stream depends on (stream, i) alone, so every device and every
/// order of generation gives the same bits. Uniform with the standard deviation asked for; only integer and
/// fp32 steps, the same everywhere.
class weight_stream {
 public:
  weight_stream(std::uint64_t stream, double deviation)
      : stream_(stream), scale_(static_cast<float>(deviation * 1.7320508)) {}

  void fill(float* to, std::int64_t n, float shift = 0) const {
    generate(n, [&](std::int64_t i, float v) { to[i] = v + shift; });
  }
  void fill(numeric::bf16* to, std::int64_t n, float shift = 0) const {
    generate(n, [&](std::int64_t i, float v) { to[i] = numeric::to_bf16(v + shift); });
  }

 private:
  template <class F>
  void generate(std::int64_t n, F put) const {
    for (std::int64_t first = 0; first < n; first += 8) {
      const auto words = numeric::philox4x32_10(seed, stream_, static_cast<std::uint64_t>(first / 8));
      for (std::int64_t j = 0; j < 8 && first + j < n; ++j) {
        const auto half = static_cast<std::int32_t>(words.w[j / 2] >> (16 * (j % 2)) & 0xffff);
        put(first + j, static_cast<float>(half * 2 - 65535) * (scale_ / 65536.0f));
      }
    }
  }
  static constexpr std::uint64_t seed = 0x506f7274696c65;  // "Portile"
  std::uint64_t stream_;
  float scale_;
};

}  // namespace portile::block
