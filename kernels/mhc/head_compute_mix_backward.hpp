#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Gradients of mhc.head_compute_mix. The sigmoid s is recomputed: dz = s * (1-s) * out_grad;  x_grad = dz *
/// scale[0]; scale_grad = sum over t and j of dz * x;  base_grad[j] = sum_t dz. With `accumulate` the last
/// two add to what is there. Without tokens they are zero, or left as they are when accumulating.
struct head_compute_mix_backward {
  static constexpr const char* name = "mhc.head_compute_mix_backward";

  tensor x{};
  tensor scale{};
  tensor base{};
  tensor out_grad{};
  tensor x_grad{};
  tensor scale_grad{};
  tensor base_grad{};
  bool accumulate = false;

  static void describe(description<head_compute_mix_backward>& d) {
    using enum dtype;
    using p = head_compute_mix_backward;
    d.summary("gradients of mhc.head_compute_mix");
    d.tolerance("relative 1e-4, absolute 1e-5");
    d.in("x", &p::x, "num_tokens, mhc_mult", {f32}, "mixing logits");
    d.in("scale", &p::scale, "1", {f32}, "scale of the logits");
    d.in("base", &p::base, "mhc_mult", {f32}, "offset of each mix");
    d.in("out_grad", &p::out_grad, "num_tokens, mhc_mult", {f32}, "gradient of the mixes");
    d.out("x_grad", &p::x_grad, "num_tokens, mhc_mult", {f32}, "gradient of x");
    d.inout("scale_grad", &p::scale_grad, "1", {f32}, "gradient of scale, all tokens");
    d.inout("base_grad", &p::base_grad, "mhc_mult", {f32}, "gradient of base, all tokens");
    d.attribute("accumulate", &p::accumulate, "add to scale_grad and base_grad instead of overwriting them");
    d.ignored({"pre_eps"});
    d.lifted("mhc_mult is 4");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
