#pragma once
#include <portile/kernels/quant/swiglu.hpp>

namespace portile::quant {

/// Gradients of quant.swiglu_forward. With X, Y the clamped halves of x, w the row's weight, t = 1 + exp(-X),
/// s = 1 / t, in fp32:
///   A = (X / t) * Y, act_out = A * w
///   g = (out_grad * w) * s
///   x_grad = [(g * Y) * fma(X, 1 - s, 1) | g * X], 0 where the clamp c cuts (left > c; right > c or right <
///   -c) topk_weights_grad[row] = (sum of out_grad * A over the row) * routed_scaling_factor
/// each rounded once to its type. psum layout: rows between the end of an expert and the next multiple of
/// token_alignment are padding and get zeros; rows behind all segments are computed like any other. exp is
/// core/numeric's.
struct swiglu_backward {
  static constexpr const char* name = "quant.swiglu_backward";

  tensor x{};
  tensor out_grad{};
  tensor psum_num_tokens_per_expert{};
  tensor topk_weights{};
  tensor x_grad{};
  tensor topk_weights_grad{};
  tensor act_out{};
  word fmt{};
  std::optional<double> routed_scaling_factor{};
  std::optional<double> clamp_value{};
  std::int64_t token_alignment = 128;

  static void describe(description<swiglu_backward>& d) {
    using enum dtype;
    using op = swiglu_backward;
    d.summary("gradients of SwiGLU in bf16 or f32, with the activation recomputed");
    d.tolerance(
        "bf16: bits; f32: rtol 1e-5 or 1e-6 of the row's largest value; topk_weights_grad: rtol and atol "
        "1e-4");
    d.in("x", &op::x, "num_expanded_tokens, 2 * hidden_size", {bf16, f32},
         "left and right half side by side");
    d.in("out_grad", &op::out_grad, "num_expanded_tokens, hidden_size", {bf16, f32},
         "gradient of the activations, in the type of x");
    d.in("psum_num_tokens_per_expert", &op::psum_num_tokens_per_expert, "num_experts", i32,
         "end row of each expert")
        .optional();
    d.in("topk_weights", &op::topk_weights, "num_expanded_tokens", f32, "weight of each row").optional();
    d.out("x_grad", &op::x_grad, "num_expanded_tokens, 2 * hidden_size", {bf16, f32}, "gradient of x");
    d.out("topk_weights_grad", &op::topk_weights_grad, "num_expanded_tokens", f32, "gradient of the weights")
        .optional();
    d.out("act_out", &op::act_out, "num_expanded_tokens, hidden_size", {bf16, f32},
          "weighted activations, in the type of x_grad")
        .optional();
    d.attribute("fmt", &op::fmt, "format of x_grad and act_out; empty: by x_grad.dtype")
        .one_of({"", "bf16", "fp32"});
    d.attribute("routed_scaling_factor", &op::routed_scaling_factor, "multiplies every weight");
    d.attribute("clamp_value", &op::clamp_value, "bound of left from above and of right on both sides");
    d.attribute("token_alignment", &op::token_alignment,
                "rows that the segment of an expert is padded to in the psum layout");
    d.ignored({"api", "do_recompute", "use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0"});
    d.kept("hidden_size is a multiple of 64");
    d.kept("out_grad has the type of x; act_out has the type of x_grad");
    d.kept("routed_scaling_factor and topk_weights_grad need topk_weights");
    describe_routing_traps(d);
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
