#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Gradients of mhc.pre_norm_fn from what it saved. With G = out_grad, K = mhc_mult * hidden_size, fn_r as
/// there and r = rsqrt(sqrsum / K + norm_eps):
///   mg[t, j] = tf32(G * r);  sqrsum_grad[t] = -1/2 * (sum_j G * out_mul) * r / (sqrsum + norm_eps * K)
///   residual_grad[t, k] = bf16(old + sum_j mg[t, j] * fn_r[j, k] + 2 * residual * sqrsum_grad), in fp32, one
///   rounding merged_grad[j, k] = sum_t mg[t, j] * residual[t, k] fn_grad = merged_grad, or merged_grad *
///   norm_weight;  norm_weight_grad[k] = sum_j merged_grad[j, k] * fn[j, k]
/// The rounding of fn to tf32 has derivative 1. residual_grad adds to what mhc.post_backward or another
/// consumer of the residual left there, unless accumulate_residual is false: then it is overwritten and never
/// read.
struct pre_norm_fn_backward {
  static constexpr const char* name = "mhc.pre_norm_fn_backward";

  tensor residual{};
  tensor fn{};
  tensor norm_weight{};
  tensor out_mul{};
  tensor sqrsum{};
  tensor out_grad{};
  tensor residual_grad{};
  tensor fn_grad{};
  tensor norm_weight_grad{};
  double norm_eps = 1e-6;
  bool head = false;
  bool accumulate = false;
  bool accumulate_residual = true;

  static void describe(description<pre_norm_fn_backward>& d) {
    using enum dtype;
    using p = pre_norm_fn_backward;
    d.summary("gradients of mhc.pre_norm_fn");
    d.tolerance("that of fp32 sums of tf32 products; residual_grad relative 1.6e-2 (bf16)");
    d.in("residual", &p::residual, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.in("fn", &p::fn, "mhc_mult * (head ? 1 : mhc_mult + 2), mhc_mult * hidden_size", {f32},
         "mixing matrix, not merged");
    d.in("norm_weight", &p::norm_weight, "mhc_mult * hidden_size", {f32}, "RMS weight, merged into fn")
        .optional();
    d.in("out_mul", &p::out_mul, "num_tokens, mhc_mult * (head ? 1 : mhc_mult + 2)", {f32},
         "saved by mhc.pre_norm_fn");
    d.in("sqrsum", &p::sqrsum, "num_tokens", {f32}, "saved by mhc.pre_norm_fn");
    d.in("out_grad", &p::out_grad, "num_tokens, mhc_mult * (head ? 1 : mhc_mult + 2)", {f32},
         "gradient of the logits");
    d.inout("residual_grad", &p::residual_grad, "num_tokens, mhc_mult, hidden_size", {bf16},
            "gradient of residual, added to");
    d.inout("fn_grad", &p::fn_grad, "mhc_mult * (head ? 1 : mhc_mult + 2), mhc_mult * hidden_size", {f32},
            "gradient of fn");
    d.inout("norm_weight_grad", &p::norm_weight_grad, "mhc_mult * hidden_size", {f32},
            "gradient of norm_weight")
        .optional();
    d.attribute("norm_eps", &p::norm_eps, "as in mhc.pre_norm_fn");
    d.attribute("head", &p::head, "as in mhc.pre_norm_fn");
    d.attribute("accumulate", &p::accumulate,
                "add to fn_grad and norm_weight_grad instead of overwriting them");
    d.attribute("accumulate_residual", &p::accumulate_residual,
                "add to residual_grad instead of overwriting it");
    d.ignored({"fn_is_tf32"});
    d.kept("hidden_size is a multiple of 8");
    d.kept("mhc_mult is 1 to 8");
    d.kept("norm_weight_grad only with norm_weight");
    d.lifted("mhc_mult is 4");
    d.lifted("mhc_mult * hidden_size is a multiple of 128");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
