#pragma once
#include <portile/core/problem.hpp>

namespace portile::rand {

/// Standard normal numbers. Elements 4 b .. 4 b + 3 of out, counted in row-major order whatever the strides,
/// are the Box-Muller numbers of the Philox4x32-10 words with key `seed` and counter (offset, b), 64 bits
/// each:
///   u_i = fma(fp32(w_i), 2^-32, 2^-33), in (0, 1]
///   z0, z1 = sqrt(-2 ln u0) * (cos, sin)(2 pi u1);  z2, z3 likewise of u2, u3
/// in fp32 by core/numeric/normal.hpp, then rounded once to the dtype of out, ties to even. Stateless:
/// portile::generator keeps seed and offset between calls.
struct randn {
  static constexpr const char* name = "rand.randn";

  tensor out{};
  std::int64_t seed = 0;
  std::int64_t offset = 0;

  static void describe(description<randn>& d) {
    using enum dtype;
    d.summary("standard normal numbers from a seed and an offset");
    d.tolerance("bits");
    d.out("out", &randn::out, "numel | ...", {f32, bf16, f16, f64}, "the numbers").any_strides();
    d.attribute("seed", &randn::seed, "64-bit seed");
    d.attribute("offset", &randn::offset, "64-bit number of the call: another offset, other numbers");
    d.ignored({"api"});
  }
  void check(checker&) const {}
  void infer(inference& i) const;
};

}  // namespace portile::rand
