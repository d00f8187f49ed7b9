#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Everything between the residual streams and a layer's input: mhc.pre_norm_fn (norm_weight included),
/// mhc.pre_split_mixes, mhc.sinkhorn of comb_mix and mhc.pre_apply_mix with pre_mix, in one problem, for
/// training and inference alike. out_mul, sqrsum and pre_mix are what the backward pass needs: the logits are
/// out_mul * rsqrt(sqrsum / K + norm_eps). The results are those of the four operations; in the reference bit
/// for bit.
struct pre {
  static constexpr const char* name = "mhc.pre";

  tensor residual{};
  tensor fn{};
  tensor norm_weight{};
  tensor scale{};
  tensor base{};
  tensor post_mix{};
  tensor comb_mix{};
  tensor layer_input{};
  tensor out_mul{};
  tensor sqrsum{};
  tensor pre_mix{};
  double norm_eps = 1e-6;
  double pre_eps = 1e-6;
  double sinkhorn_eps = 1e-6;
  double post_mult_value = 1.0;
  std::int64_t sinkhorn_repeat = 10;
  std::int64_t n_splits = 16;
  bool save_for_backward = true;

  static void describe(description<pre>& d) {
    using enum dtype;
    using p = pre;
    d.summary("residual streams to a layer's input and the mixes of its output");
    d.tolerance("those of the four operations it is made of");
    d.in("residual", &p::residual, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.in("fn", &p::fn, "mhc_mult * (mhc_mult + 2), mhc_mult * hidden_size", {f32}, "mixing matrix");
    d.in("norm_weight", &p::norm_weight, "mhc_mult * hidden_size", {f32}, "RMS weight, merged into fn")
        .optional();
    d.in("scale", &p::scale, "3", {f32}, "scale of each kind of mix");
    d.in("base", &p::base, "mhc_mult * (mhc_mult + 2)", {f32}, "offset of each mix");
    d.out("post_mix", &p::post_mix, "num_tokens, mhc_mult", {f32}, "weights of the layer's output");
    d.out("comb_mix", &p::comb_mix, "num_tokens, mhc_mult, mhc_mult", {f32},
          "mixing of the streams, [in, out]");
    d.out("layer_input", &p::layer_input, "num_tokens, hidden_size", {bf16}, "input of the layer");
    d.out("out_mul", &p::out_mul, "num_tokens, mhc_mult * (mhc_mult + 2)", {f32}, "products before the norm")
        .optional();
    d.out("sqrsum", &p::sqrsum, "num_tokens", {f32}, "sums of squares").optional();
    d.out("pre_mix", &p::pre_mix, "num_tokens, mhc_mult", {f32}, "weights of the streams in layer_input")
        .optional();
    d.attribute("norm_eps", &p::norm_eps, "added to the mean square");
    d.attribute("pre_eps", &p::pre_eps, "added to pre_mix");
    d.attribute("sinkhorn_eps", &p::sinkhorn_eps, "eps of mhc.sinkhorn");
    d.attribute("post_mult_value", &p::post_mult_value, "factor of post_mix");
    d.attribute("sinkhorn_repeat", &p::sinkhorn_repeat, "repeat of mhc.sinkhorn, at least 1");
    d.attribute("n_splits", &p::n_splits, "as in mhc.pre_norm_fn");
    d.attribute("save_for_backward", &p::save_for_backward, "infer lists out_mul, sqrsum and pre_mix");
    d.kept("hidden_size is a multiple of 8");
    d.kept("mhc_mult is 1 to 8");
    d.kept("n_splits is at least 1");
    d.kept("sinkhorn_repeat is 1 to 65536");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
