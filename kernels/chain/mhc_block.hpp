#pragma once
#include <portile/core/problem.hpp>

namespace portile {
class composer;
}

namespace portile::chain {

/// One block with residual streams, forward and, where gradients are given, backward. The layer inside is a
/// scaling of channels:
///   pre    mhc.pre_norm_fn, mhc.pre_split_mixes, mhc.sinkhorn of comb_mix, mhc.pre_apply_mix with pre_mix ->
///   layer_input layer  y = bf16(layer_input * layer_weight) post   mhc.post(y, residual, post_mix, comb_mix)
///   -> out
/// The backward pass runs the gradients of these from the last to the first. residual_grad sums its paths in
/// fp32 and rounds once (mhc.block_backward). With `accumulate` the gradients of the parameters are added to,
/// otherwise they are overwritten.
struct mhc_block {
  static constexpr const char* name = "chain.mhc_block";

  tensor residual{};
  tensor fn{};
  tensor norm_weight{};
  tensor scale{};
  tensor base{};
  tensor layer_weight{};
  tensor out_grad{};
  tensor layer_input{};
  tensor post_mix{};
  tensor comb_mix{};
  tensor out{};
  tensor residual_grad{};
  tensor fn_grad{};
  tensor norm_weight_grad{};
  tensor scale_grad{};
  tensor base_grad{};
  double norm_eps = 1e-6;
  double pre_eps = 1e-6;
  double sinkhorn_eps = 1e-6;
  double post_mult_value = 1;
  std::int64_t sinkhorn_repeat = 10;
  std::int64_t n_splits = 16;
  bool accumulate = false;

  static void describe(description<mhc_block>& d) {
    using p = mhc_block;
    using enum dtype;
    d.summary("a block with residual streams around a channel scaling, with its gradients");
    d.tolerance("those of its steps");
    const char* streams = "num_tokens, mhc_mult, hidden_size";
    const char* rows = "num_tokens, hidden_size";
    d.in("residual", &p::residual, streams, {bf16}, "residual streams");
    d.in("fn", &p::fn, "mhc_mult * (mhc_mult + 2), mhc_mult * hidden_size", {f32}, "mixing matrix");
    d.in("norm_weight", &p::norm_weight, "mhc_mult * hidden_size", {f32}, "RMS weight, merged into fn")
        .optional();
    d.in("scale", &p::scale, "3", {f32}, "scale of each kind of mix");
    d.in("base", &p::base, "mhc_mult * (mhc_mult + 2)", {f32}, "offset of each mix");
    d.in("layer_weight", &p::layer_weight, "hidden_size", {f32}, "the layer: a factor of each channel");
    d.in("out_grad", &p::out_grad, streams, {bf16}, "gradient of out").optional();
    d.out("layer_input", &p::layer_input, rows, {bf16}, "input of the layer").optional().contiguous();
    d.out("post_mix", &p::post_mix, "num_tokens, mhc_mult", {f32}, "weights of the layer's output")
        .optional();
    d.out("comb_mix", &p::comb_mix, "num_tokens, mhc_mult, mhc_mult", {f32},
          "mixing of the streams, [in, out]")
        .optional();
    d.out("out", &p::out, streams, {bf16}, "residual streams after the block");
    d.out("residual_grad", &p::residual_grad, streams, {bf16}, "gradient of residual").optional();
    d.inout("fn_grad", &p::fn_grad, "mhc_mult * (mhc_mult + 2), mhc_mult * hidden_size", {f32},
            "gradient of fn")
        .optional();
    d.inout("norm_weight_grad", &p::norm_weight_grad, "mhc_mult * hidden_size", {f32},
            "gradient of norm_weight")
        .optional();
    d.inout("scale_grad", &p::scale_grad, "3", {f32}, "gradient of scale").optional();
    d.inout("base_grad", &p::base_grad, "mhc_mult * (mhc_mult + 2)", {f32}, "gradient of base").optional();
    d.attribute("norm_eps", &p::norm_eps, "added to the mean square");
    d.attribute("pre_eps", &p::pre_eps, "added to pre_mix");
    d.attribute("sinkhorn_eps", &p::sinkhorn_eps, "eps of mhc.sinkhorn");
    d.attribute("post_mult_value", &p::post_mult_value, "factor of post_mix");
    d.attribute("sinkhorn_repeat", &p::sinkhorn_repeat, "repeat of mhc.sinkhorn, at least 1");
    d.attribute("n_splits", &p::n_splits, "as in mhc.pre_norm_fn");
    d.attribute("accumulate", &p::accumulate,
                "add to the gradients of the parameters instead of overwriting them");
    d.kept("hidden_size is a multiple of 8");
    d.kept("mhc_mult is 1 to 8");
    d.kept("sinkhorn_repeat is 1 to 65536, n_splits at least 1");
    d.kept(
        "gradients need out_grad; scale_grad and base_grad come together; norm_weight_grad needs "
        "norm_weight");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
  void compose(composer& c) const;
};

}  // namespace portile::chain
