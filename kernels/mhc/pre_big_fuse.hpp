#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Everything between the residual streams and a layer's input, for inference: mhc.pre_norm_fn,
/// mhc.pre_split_mixes, mhc.sinkhorn of comb_mix and mhc.pre_apply_mix with pre_mix, with their arithmetic.
/// It starts from the partial sums of mhc.pre_norm_fn_partials (one RMS group) where they are given, then fn
/// is not read; else from fn, cut into fn_splits ranges of channels as mhc.pre_norm_fn is. norm_weight must
/// have been merged into fn: mhc.pre does that itself. From the partial sums on the results have the bits of
/// the unfused operations of the same backend.
struct pre_big_fuse {
  static constexpr const char* name = "mhc.pre_big_fuse";

  tensor residual{};
  tensor fn{};
  tensor out_mul_splitted{};
  tensor sqrsum_splitted{};
  tensor scale{};
  tensor base{};
  tensor post_mix{};
  tensor comb_mix{};
  tensor layer_input{};
  double norm_eps = 1e-6;
  double pre_eps = 1e-6;
  double sinkhorn_eps = 1e-6;
  double post_mult_value = 1.0;
  std::int64_t sinkhorn_repeat = 10;
  std::int64_t fn_splits = 16;

  static void describe(description<pre_big_fuse>& d) {
    using enum dtype;
    using p = pre_big_fuse;
    d.summary("residual streams to a layer's input and the mixes of its output, fused");
    d.tolerance("bits of the unfused operations of the same backend, from the partial sums on");
    d.in("residual", &p::residual, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.in("fn", &p::fn, "mhc_mult * (mhc_mult + 2), mhc_mult * hidden_size", {f32}, "mixing matrix")
        .optional();
    d.in("out_mul_splitted", &p::out_mul_splitted, "n_splits, num_tokens, mhc_mult * (mhc_mult + 2)", {f32},
         "partial products")
        .optional();
    d.in("sqrsum_splitted", &p::sqrsum_splitted, "n_splits, num_tokens", {f32}, "partial sums of squares")
        .optional();
    d.in("scale", &p::scale, "3", {f32}, "scale of each kind of mix");
    d.in("base", &p::base, "mhc_mult * (mhc_mult + 2)", {f32}, "offset of each mix");
    d.out("post_mix", &p::post_mix, "num_tokens, mhc_mult", {f32}, "weights of the layer's output");
    d.out("comb_mix", &p::comb_mix, "num_tokens, mhc_mult, mhc_mult", {f32},
          "mixing of the streams, [in, out]");
    d.out("layer_input", &p::layer_input, "num_tokens, hidden_size", {bf16}, "input of the layer");
    d.attribute("norm_eps", &p::norm_eps, "added to the mean square");
    d.attribute("pre_eps", &p::pre_eps, "added to pre_mix");
    d.attribute("sinkhorn_eps", &p::sinkhorn_eps, "eps of mhc.sinkhorn");
    d.attribute("post_mult_value", &p::post_mult_value, "factor of post_mix");
    d.attribute("sinkhorn_repeat", &p::sinkhorn_repeat, "repeat of mhc.sinkhorn, at least 1");
    d.attribute("fn_splits", &p::fn_splits,
                "n_splits of mhc.pre_norm_fn when starting from fn; an implementation may cut elsewhere");
    d.ignored({"fn_is_tf32"});
    d.kept("fn, or out_mul_splitted and sqrsum_splitted, are given");
    d.kept("hidden_size is a multiple of 8");
    d.kept("mhc_mult is 1 to 8");
    d.kept("sinkhorn_repeat is 1 to 65536");
    d.kept("n_splits is at least 1");
    d.lifted("mhc_mult is 4");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
