#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Splits the mixing logits into the three kinds of mixes. With m = mhc_mult, z = fma(x[t, j], scale[seg],
/// base[j]) and seg = 0, 1, 2 for j < m, j < 2m, the rest:
///   pre_mix = sigmoid(z) + pre_eps;  post_mix = sigmoid(z) * post_mult_value;  comb_mix[t, i, o] = z at j =
///   2m + i*m + o
struct pre_split_mixes {
  static constexpr const char* name = "mhc.pre_split_mixes";

  tensor x{};
  tensor scale{};
  tensor base{};
  tensor pre_mix{};
  tensor post_mix{};
  tensor comb_mix{};
  double post_mult_value = 1.0;
  double pre_eps = 1e-6;

  static void describe(description<pre_split_mixes>& d) {
    using enum dtype;
    d.summary("mixing logits to pre, post and comb mixes");
    d.tolerance("relative 1e-5, absolute 2e-6");
    d.in("x", &pre_split_mixes::x, "num_tokens, mhc_mult * (mhc_mult + 2)", {f32}, "mixing logits");
    d.in("scale", &pre_split_mixes::scale, "3", {f32}, "scale of each kind");
    d.in("base", &pre_split_mixes::base, "mhc_mult * (mhc_mult + 2)", {f32}, "offset of each mix");
    d.out("pre_mix", &pre_split_mixes::pre_mix, "num_tokens, mhc_mult", {f32},
          "weights of the streams in the layer's input");
    d.out("post_mix", &pre_split_mixes::post_mix, "num_tokens, mhc_mult", {f32},
          "weights of the layer's output");
    d.out("comb_mix", &pre_split_mixes::comb_mix, "num_tokens, mhc_mult, mhc_mult", {f32},
          "logits of mhc.sinkhorn, [in, out]");
    d.attribute("post_mult_value", &pre_split_mixes::post_mult_value, "factor of post_mix");
    d.attribute("pre_eps", &pre_split_mixes::pre_eps, "added to pre_mix");
    d.kept("x has mhc_mult * (mhc_mult + 2) columns");
    d.lifted("mhc_mult is 4");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
