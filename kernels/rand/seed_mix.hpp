#pragma once
#include <portile/core/problem.hpp>

namespace portile::rand {

/// Spreads the bits of small seeds, modulo 2^32:
///   s = seed + 0x9E3779B9; s ^= s >> 16; s *= 0x21F0AAAD; s ^= s >> 15; s *= 0x735A2D97; s ^= s >> 15; out =
///   s
struct seed_mix {
  static constexpr const char* name = "rand.seed_mix";

  tensor seed{};
  tensor out{};

  static void describe(description<seed_mix>& d) {
    using enum dtype;
    d.summary("well-mixed 32-bit seeds from small ones");
    d.tolerance("bits");
    d.in("seed", &seed_mix::seed, "num_rows", i64, "seeds; the low 32 bits count");
    d.out("out", &seed_mix::out, "num_rows", u32, "mixed seeds");
    d.ignored({"api"});
  }
  void check(checker&) const {}
  void infer(inference& i) const;
};

}  // namespace portile::rand
