#pragma once
#include <portile/kernels/quant/swiglu.hpp>

namespace portile::quant {

/// Gradients of SwiGLU from quantised x (one scale per row and num_per_channels channels), also quantised.
/// With X, Y the clamped halves of decode(x) * x_sf, w the row's weight, t = 1 + exp(-X), s = 1 / t, in fp32:
///   A = (X / t) * Y, act_out = A * w
///   g = (out_grad * w) * s
///   x_grad = [(g * Y) * fma(X, 1 - s, 1) | g * X], 0 where the clamp c cuts (left > c; right > c or right <
///   -c) x_grad_fp8, x_grad_fp8_sf = quant.per_token_cast of the unrounded fp32 gradient; groups do not span
///   the halves topk_weights_grad = (sum of out_grad * A over the row) * routed_scaling_factor
/// w is 1, topk_weights[row], or topk_weights.flat[pos_to_token_topk[row]] (0 where that is negative), times
/// routed_scaling_factor. With a matrix of weights the gradient of choice (n, k) is that of row
/// token_topk_to_pos[n, k], 0 where that is negative. psum layout: rows between the end of an expert and the
/// next multiple of token_alignment are padding and get zeros, scales too; rows behind all segments are
/// computed like any other. exp is core/numeric's.
struct swiglu_backward_and_per_token_cast {
  static constexpr const char* name = "quant.swiglu_backward_and_per_token_cast";

  tensor x{};
  tensor x_sf{};
  tensor out_grad{};
  tensor topk_weights{};
  tensor pos_to_token_topk{};
  tensor token_topk_to_pos{};
  tensor psum_num_tokens_per_expert{};
  tensor x_grad_fp8{};
  tensor x_grad_fp8_sf{};
  tensor x_grad{};
  tensor topk_weights_grad{};
  tensor act_out{};
  word fmt{};
  std::int64_t num_per_channels = 128;
  std::optional<double> routed_scaling_factor{};
  std::optional<double> clamp_value{};
  std::int64_t token_alignment = 128;
  bool use_tma_aligned_col_major_sf = false;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool use_packed_ue8m0 = false;

  static void describe(description<swiglu_backward_and_per_token_cast>& d) {
    using enum dtype;
    using op = swiglu_backward_and_per_token_cast;
    d.summary("gradients of SwiGLU from quantised x, in bf16 and quantised, with the activation recomputed");
    d.tolerance("bits; topk_weights_grad: rtol and atol 1e-4");
    d.in("x", &op::x, "num_expanded_tokens, 2 * hidden_size | num_groups, num_group_rows, 2 * hidden_size",
         e4m3, "codes, left and right half side by side");
    d.in("x_sf", &op::x_sf, "num_expanded_tokens, ceil(2 * hidden_size, num_per_channels)", {f32, ue8m0x4},
         "scales of x, in any layout")
        .any_strides();
    d.in("out_grad", &op::out_grad, "num_expanded_tokens, hidden_size", {bf16, f32},
         "gradient of the activations");
    d.in("topk_weights", &op::topk_weights, "num_tokens, num_topk | num_expanded_tokens", f32,
         "weights per token and choice, with pos_to_token_topk; or one per row")
        .optional();
    d.in("pos_to_token_topk", &op::pos_to_token_topk, "num_expanded_tokens", i32,
         "flat index of a row's weight; negative: weight 0")
        .optional();
    d.in("token_topk_to_pos", &op::token_topk_to_pos, "num_tokens, num_topk", i32,
         "row of each choice; negative: none")
        .optional();
    d.in("psum_num_tokens_per_expert", &op::psum_num_tokens_per_expert, "num_experts", i32,
         "end row of each expert")
        .optional();
    d.out("x_grad_fp8", &op::x_grad_fp8, "num_expanded_tokens, 2 * hidden_size", e4m3,
          "codes of the gradient of x");
    d.out("x_grad_fp8_sf", &op::x_grad_fp8_sf, "num_expanded_tokens, ceil(2 * hidden_size, num_per_channels)",
          {f32, ue8m0x4}, "their scales, in the layout that the flags ask for")
        .any_strides();
    d.out("x_grad", &op::x_grad, "num_expanded_tokens, 2 * hidden_size", bf16, "gradient of x");
    d.out("topk_weights_grad", &op::topk_weights_grad, "num_tokens, num_topk | num_expanded_tokens", f32,
          "gradient of the weights")
        .optional();
    d.out("act_out", &op::act_out, "num_expanded_tokens, hidden_size", bf16, "weighted activations")
        .optional();
    d.attribute("fmt", &op::fmt, "format of x_grad_fp8; empty: by its dtype").one_of({"", "e4m3"});
    d.attribute("num_per_channels", &op::num_per_channels,
                "channels per scale of x and of x_grad_fp8: 32 or 128");
    d.attribute("routed_scaling_factor", &op::routed_scaling_factor, "multiplies every weight");
    d.attribute("clamp_value", &op::clamp_value, "bound of left from above and of right on both sides");
    d.attribute("token_alignment", &op::token_alignment,
                "rows that the segment of an expert is padded to in the psum layout");
    d.attribute("use_tma_aligned_col_major_sf", &op::use_tma_aligned_col_major_sf,
                "x_grad_fp8_sf is column-major, columns 16-byte aligned");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_packed_ue8m0", &op::use_packed_ue8m0,
                "x_grad_fp8_sf holds four exponents per int32; needs round_sf");
    d.ignored({"api", "do_recompute"});
    d.kept("num_per_channels is 32 or 128 and divides hidden_size");
    d.kept(
        "pos_to_token_topk, routed_scaling_factor and topk_weights_grad need topk_weights; a "
        "topk_weights_grad of rank 2 needs token_topk_to_pos");
    d.kept("use_packed_ue8m0 needs round_sf");
    d.lifted("hidden_size is a multiple of 64");
    d.lifted("x_sf is row-major f32");
    d.lifted("packed scales need the column-major layout");
    describe_routing_traps(d);
    d.trap("token_topk_to_pos: must be below num_expanded_tokens");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
