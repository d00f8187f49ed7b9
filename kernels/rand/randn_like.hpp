#pragma once
#include <portile/core/problem.hpp>

namespace portile::rand {

/// rand.randn into a tensor of the shape and dtype of x. The values of x are not read.
struct randn_like {
  static constexpr const char* name = "rand.randn_like";

  tensor x{};
  tensor out{};
  std::int64_t seed = 0;
  std::int64_t offset = 0;

  static void describe(description<randn_like>& d) {
    using enum dtype;
    d.summary("standard normal numbers in the shape and dtype of x");
    d.tolerance("bits");
    d.in("x", &randn_like::x, "numel | ...", {f32, bf16, f16, f64}, "gives shape and dtype").any_strides();
    d.out("out", &randn_like::out, "numel | ...", {f32, bf16, f16, f64}, "the numbers").any_strides();
    d.attribute("seed", &randn_like::seed, "64-bit seed");
    d.attribute("offset", &randn_like::offset, "64-bit number of the call: another offset, other numbers");
    d.ignored({"api"});
    d.kept("out has the shape and dtype of x");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::rand
