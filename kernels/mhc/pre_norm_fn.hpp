#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Mixing logits of each token from its RMS-normalised residual streams, flattened to K = mhc_mult *
/// hidden_size:
///   fn_r = tf32(fn), or tf32(fn * norm_weight): the product is rounded to fp32 first, tf32 rounds ties away
///   from zero out_mul[t, j] = sum_k residual[t, k] * fn_r[j, k];  sqrsum[t] = sum_k residual[t, k]^2 out[t,
///   j] = out_mul[t, j] * rsqrt(sqrsum[t] / K + norm_eps)
/// K is cut into n_splits ranges (split s: columns floor(s*K/n_splits) up to the next); their partial sums
/// are added in order in fp32, so that mhc.pre_norm_fn_partials and mhc.reduce_partials_and_rmsnorm give the
/// same bits in one backend. fn has mhc_mult * (mhc_mult + 2) rows, or mhc_mult rows with `head`.
struct pre_norm_fn {
  static constexpr const char* name = "mhc.pre_norm_fn";

  tensor residual{};
  tensor fn{};
  tensor norm_weight{};
  tensor out_mul{};
  tensor sqrsum{};
  tensor out{};
  double norm_eps = 1e-6;
  std::int64_t n_splits = 16;
  bool head = false;
  bool save_for_backward = true;

  static void describe(description<pre_norm_fn>& d) {
    using enum dtype;
    d.summary("mixing logits: RMS norm of the residual streams times a small matrix");
    d.tolerance("that of an fp32 sum over mhc_mult * hidden_size products");
    d.in("residual", &pre_norm_fn::residual, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.in("fn", &pre_norm_fn::fn, "mhc_mult * (head ? 1 : mhc_mult + 2), mhc_mult * hidden_size", {f32},
         "mixing matrix");
    d.in("norm_weight", &pre_norm_fn::norm_weight, "mhc_mult * hidden_size", {f32},
         "RMS weight, merged into fn")
        .optional();
    d.out("out_mul", &pre_norm_fn::out_mul, "num_tokens, mhc_mult * (head ? 1 : mhc_mult + 2)", {f32},
          "products before the norm, for the backward pass")
        .optional();
    d.out("sqrsum", &pre_norm_fn::sqrsum, "num_tokens", {f32}, "sums of squares, for the backward pass")
        .optional();
    d.out("out", &pre_norm_fn::out, "num_tokens, mhc_mult * (head ? 1 : mhc_mult + 2)", {f32},
          "mixing logits");
    d.attribute("norm_eps", &pre_norm_fn::norm_eps, "added to the mean square");
    d.attribute("n_splits", &pre_norm_fn::n_splits, "ranges of K that are summed apart, at least 1");
    d.attribute("head", &pre_norm_fn::head, "fn has mhc_mult rows: the mixes of the model's head");
    d.attribute("save_for_backward", &pre_norm_fn::save_for_backward, "infer lists out_mul and sqrsum");
    d.ignored({"fn_is_tf32"});
    d.kept("hidden_size is a multiple of 8");
    d.kept("mhc_mult is 1 to 8");
    d.kept("n_splits is at least 1");
    d.lifted("mhc_mult is 4");
    d.lifted("mhc_mult * hidden_size is a multiple of 256");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
