#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// Gradient of moe.moe_topk_gate_forward with respect to the logits. For a row with scores u, ids, weights w
/// and their gradient g, over the slots j whose id is an expert:
///   D = 1e-20 + sum_j u[id_j];  a = sum_j g_j * w_j;  r[e] = sum over the slots with id_j = e, in order, of
///   (scale * g_j - a) / D with scores_sum_grad h, where mask is true, and q = t / (num_tokens / num_seqs), z
///   = 1 / sum_e u_e:
///     r[e] += (h[q, e] - z * sum_i h[q, i] * u_i) * z;  a row whose scores sum to 0 gets nothing
///   logits_grad[e] = r[e] * dy(u_e),  dy(y) = (1 - exp(-y^2)) / (2 y),  dy(0) = 0
/// `mask` concerns the aux term only. Negative ids contribute nothing, and neither do ids out of range. A row
/// without slots and with zero scores is exactly +0. NaN and Inf stay within their row.
struct moe_topk_gate_backward {
  static constexpr const char* name = "moe.moe_topk_gate_backward";

  tensor scores{};
  tensor topk_idx{};
  tensor topk_weights{};
  tensor topk_weights_grad{};
  tensor mask{};
  tensor scores_sum_grad{};
  tensor logits_grad{};
  double routed_scaling_factor = 1;
  word scoring_func = "sqrtsoftplus";

  static void describe(description<moe_topk_gate_backward>& d) {
    using enum dtype;
    using p = moe_topk_gate_backward;
    d.summary("gradient of the gate with respect to its logits");
    d.tolerance("|error| <= 1e-5 * |value| + 1e-5 * max |value|");
    d.in("scores", &p::scores, "num_tokens, num_experts", f32, "scores of the forward").contiguous();
    d.in("topk_idx", &p::topk_idx, "num_tokens, num_topk", i64,
         "logical ids of the routed slots, negative for none")
        .contiguous();
    d.in("topk_weights", &p::topk_weights, "num_tokens, num_topk", f32, "weights of the forward")
        .contiguous();
    d.in("topk_weights_grad", &p::topk_weights_grad, "num_tokens, num_topk", f32, "their gradient")
        .contiguous();
    d.in("mask", &p::mask, "num_tokens", boolean, "true: the token takes part in the aux term")
        .optional()
        .contiguous();
    d.in("scores_sum_grad", &p::scores_sum_grad, "num_seqs, num_experts", f32,
         "gradient of each sequence's summed, normalised scores")
        .optional()
        .contiguous();
    d.out("logits_grad", &p::logits_grad, "num_tokens, num_experts", f32, "gradient of the logits")
        .contiguous();
    d.attribute("routed_scaling_factor", &p::routed_scaling_factor, "factor of the routed weights");
    d.attribute("scoring_func", &p::scoring_func, "sqrtsoftplus, in any case of letters");
    d.ignored({"api"});
    d.kept("num_topk <= num_experts, num_topk <= 32");
    d.kept("scoring_func is sqrtsoftplus");
    d.kept("mask and scores_sum_grad come together; num_seqs is at least 1 and divides num_tokens");
    d.kept("all tensors are contiguous");
    d.trap("topk_idx must be below num_experts");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
