#pragma once
#include <portile/core/problem.hpp>

namespace portile {
class composer;
}

namespace portile::chain {

/// The residual streams of the last block to one row per token, forward and, where gradients are given,
/// backward: mhc.pre_norm_fn with an fn of mhc_mult rows, mhc.head_compute_mix, mhc.pre_apply_mix.
/// residual_grad sums its paths in fp32 and rounds once (mhc.block_backward). With `accumulate` the gradients
/// of the parameters are added to, otherwise they are overwritten.
struct mhc_head {
  static constexpr const char* name = "chain.mhc_head";

  tensor residual{};
  tensor fn{};
  tensor norm_weight{};
  tensor scale{};
  tensor base{};
  tensor out_grad{};
  tensor out{};
  tensor residual_grad{};
  tensor fn_grad{};
  tensor norm_weight_grad{};
  tensor scale_grad{};
  tensor base_grad{};
  double norm_eps = 1e-6;
  double pre_eps = 1e-6;
  std::int64_t n_splits = 16;
  bool accumulate = false;

  static void describe(description<mhc_head>& d) {
    using p = mhc_head;
    using enum dtype;
    d.summary("residual streams to one row per token, with its gradients");
    d.tolerance("those of its steps");
    d.in("residual", &p::residual, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.in("fn", &p::fn, "mhc_mult, mhc_mult * hidden_size", {f32}, "mixing matrix");
    d.in("norm_weight", &p::norm_weight, "mhc_mult * hidden_size", {f32}, "RMS weight, merged into fn")
        .optional();
    d.in("scale", &p::scale, "1", {f32}, "scale of the logits");
    d.in("base", &p::base, "mhc_mult", {f32}, "offset of each mix");
    d.in("out_grad", &p::out_grad, "num_tokens, hidden_size", {bf16}, "gradient of out").optional();
    d.out("out", &p::out, "num_tokens, hidden_size", {bf16}, "weighted sum of the streams");
    d.out("residual_grad", &p::residual_grad, "num_tokens, mhc_mult, hidden_size", {bf16},
          "gradient of residual")
        .optional();
    d.inout("fn_grad", &p::fn_grad, "mhc_mult, mhc_mult * hidden_size", {f32}, "gradient of fn").optional();
    d.inout("norm_weight_grad", &p::norm_weight_grad, "mhc_mult * hidden_size", {f32},
            "gradient of norm_weight")
        .optional();
    d.inout("scale_grad", &p::scale_grad, "1", {f32}, "gradient of scale").optional();
    d.inout("base_grad", &p::base_grad, "mhc_mult", {f32}, "gradient of base").optional();
    d.attribute("norm_eps", &p::norm_eps, "added to the mean square");
    d.attribute("pre_eps", &p::pre_eps, "added to the mixes");
    d.attribute("n_splits", &p::n_splits, "as in mhc.pre_norm_fn");
    d.attribute("accumulate", &p::accumulate,
                "add to the gradients of the parameters instead of overwriting them");
    d.kept("hidden_size is a multiple of 8");
    d.kept("mhc_mult is 1 to 8");
    d.kept("n_splits is at least 1");
    d.kept(
        "gradients need out_grad; scale_grad and base_grad come together; norm_weight_grad needs "
        "norm_weight");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
  void compose(composer& c) const;
};

}  // namespace portile::chain
