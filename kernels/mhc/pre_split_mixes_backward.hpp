#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Gradients of mhc.pre_split_mixes. With z as there and s = sigmoid(z), recomputed for both kinds:
///   pre: dz = pre_mix_grad * s * (1-s);  post: dz = post_mult_value * post_mix_grad * s * (1-s);  comb: dz =
///   comb_mix_grad x_grad = dz * scale[seg];  scale_grad[seg] = sum over t and the kind's j of dz * x;
///   base_grad[j] = sum_t dz
/// With `accumulate` the last two add to what is there. post_mix, which the peers need here, is taken and not
/// read: its form of the gradient is 0/0 for post_mult_value = 0.
struct pre_split_mixes_backward {
  static constexpr const char* name = "mhc.pre_split_mixes_backward";

  tensor x{};
  tensor scale{};
  tensor base{};
  tensor post_mix{};
  tensor pre_mix_grad{};
  tensor post_mix_grad{};
  tensor comb_mix_grad{};
  tensor x_grad{};
  tensor scale_grad{};
  tensor base_grad{};
  double post_mult_value = 1.0;
  bool accumulate = false;

  static void describe(description<pre_split_mixes_backward>& d) {
    using enum dtype;
    using p = pre_split_mixes_backward;
    d.summary("gradients of mhc.pre_split_mixes");
    d.tolerance("relative 1e-5, absolute 2e-5");
    d.in("x", &p::x, "num_tokens, mhc_mult * (mhc_mult + 2)", {f32}, "mixing logits");
    d.in("scale", &p::scale, "3", {f32}, "scale of each kind");
    d.in("base", &p::base, "mhc_mult * (mhc_mult + 2)", {f32}, "offset of each mix");
    d.in("post_mix", &p::post_mix, "num_tokens, mhc_mult", {f32}, "saved output; not read").optional();
    d.in("pre_mix_grad", &p::pre_mix_grad, "num_tokens, mhc_mult", {f32}, "gradient of pre_mix");
    d.in("post_mix_grad", &p::post_mix_grad, "num_tokens, mhc_mult", {f32}, "gradient of post_mix");
    d.in("comb_mix_grad", &p::comb_mix_grad, "num_tokens, mhc_mult, mhc_mult", {f32}, "gradient of comb_mix");
    d.out("x_grad", &p::x_grad, "num_tokens, mhc_mult * (mhc_mult + 2)", {f32}, "gradient of x");
    d.inout("scale_grad", &p::scale_grad, "3", {f32}, "gradient of scale, all tokens");
    d.inout("base_grad", &p::base_grad, "mhc_mult * (mhc_mult + 2)", {f32}, "gradient of base, all tokens");
    d.attribute("post_mult_value", &p::post_mult_value, "factor of post_mix");
    d.attribute("accumulate", &p::accumulate, "add to scale_grad and base_grad instead of overwriting them");
    d.ignored({"pre_eps"});
    d.kept("x has mhc_mult * (mhc_mult + 2) columns");
    d.lifted("mhc_mult is 4");
    d.lifted("post_mult_value is not 0");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
