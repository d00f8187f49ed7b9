#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Mixes of the model's head: out[t, j] = sigmoid(fma(x[t, j], scale[0], base[j])) + pre_eps.
struct head_compute_mix {
  static constexpr const char* name = "mhc.head_compute_mix";

  tensor x{};
  tensor scale{};
  tensor base{};
  tensor out{};
  double pre_eps = 1e-6;

  static void describe(description<head_compute_mix>& d) {
    using enum dtype;
    using p = head_compute_mix;
    d.summary("mixing logits of the head to its mixes");
    d.tolerance("relative 1e-5, absolute 2e-6");
    d.in("x", &p::x, "num_tokens, mhc_mult", {f32}, "mixing logits");
    d.in("scale", &p::scale, "1", {f32}, "scale of the logits");
    d.in("base", &p::base, "mhc_mult", {f32}, "offset of each mix");
    d.out("out", &p::out, "num_tokens, mhc_mult", {f32}, "weights of the streams");
    d.attribute("pre_eps", &p::pre_eps, "added to the sigmoid");
    d.lifted("mhc_mult is 4");
    d.lifted("x has rank 3");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
