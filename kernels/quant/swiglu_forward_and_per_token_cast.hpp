#pragma once
#include <portile/kernels/quant/swiglu.hpp>

namespace portile::quant {

/// SwiGLU of x = [left | right], weighted and quantised, without rounding in between:
///   l = min(left, c), r = max(min(right, c), -c) with a clamp value c
///   a = ((l / (1 + exp(-l))) * r) * w        fp32, in this order
///   out, out_sf = per_token_cast(a), groups of num_per_channels; sf_clamp_min replaces the lower bound 1e-4
///   of amax
/// w is 1, topk_weights[row], or topk_weights.flat[pos_to_token_topk[row]] (0 where that is negative), times
/// routed_scaling_factor in fp32.
/// Rows that count: all, or those with pos_to_expert >= 0, or those of the psum layout (expert e owns rows
/// [align(psum[e-1], token_alignment), psum[e])). Other rows are not read and their results stay as they are.
/// clamped_count is added to: #(left > c), #(right > c), #(right < -c) and, with four entries, the number of
/// activations. NaN gives the NaN code and is ignored by amax. exp is core/numeric's.
struct swiglu_forward_and_per_token_cast {
  static constexpr const char* name = "quant.swiglu_forward_and_per_token_cast";

  tensor x{};
  tensor pos_to_token_topk{};
  tensor topk_weights{};
  tensor pos_to_expert{};
  tensor psum_num_tokens_per_expert{};
  tensor out{};
  tensor out_sf{};
  tensor clamped_count{};
  word fmt{};
  std::int64_t num_per_channels = 128;
  std::optional<double> routed_scaling_factor{};
  std::optional<double> clamp_value{};
  std::optional<double> sf_clamp_min{};
  std::int64_t token_alignment = 128;
  bool use_tma_aligned_col_major_sf = false;
  bool round_sf = false;
  bool use_packed_ue8m0 = false;

  static void describe(description<swiglu_forward_and_per_token_cast>& d) {
    using enum dtype;
    using op = swiglu_forward_and_per_token_cast;
    d.summary("SwiGLU of the rows of the experts, quantised to e4m3 with one scale per group of channels");
    d.tolerance("bits");
    d.in("x", &op::x, "num_expanded_tokens, 2 * hidden_size", {bf16, f32},
         "left and right half side by side");
    d.in("pos_to_token_topk", &op::pos_to_token_topk, "num_expanded_tokens", i32,
         "flat index of a row's weight; negative: weight 0")
        .optional();
    d.in("topk_weights", &op::topk_weights, "num_tokens, num_topk | num_expanded_tokens", f32,
         "weights per token and choice, with pos_to_token_topk; or one per row")
        .optional();
    d.in("pos_to_expert", &op::pos_to_expert, "num_expanded_tokens", i32,
         "expert of a row; negative: padding")
        .optional();
    d.in("psum_num_tokens_per_expert", &op::psum_num_tokens_per_expert, "num_experts", i32,
         "end row of each expert")
        .optional();
    d.out("out", &op::out, "num_expanded_tokens, hidden_size", e4m3, "codes");
    d.out("out_sf", &op::out_sf, "num_expanded_tokens, ceil(hidden_size, num_per_channels)", {f32, ue8m0x4},
          "scales, in the layout that the flags ask for")
        .any_strides();
    d.inout("clamped_count", &op::clamped_count, "num_counters", i64,
            "3 or 4 counters that are added to; needs clamp_value")
        .optional();
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "e4m3"});
    d.attribute("num_per_channels", &op::num_per_channels, "channels per scale: 32, 128 or hidden_size");
    d.attribute("routed_scaling_factor", &op::routed_scaling_factor, "multiplies every weight");
    d.attribute("clamp_value", &op::clamp_value, "bound of left from above and of right on both sides");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of 1e-4");
    d.attribute("token_alignment", &op::token_alignment,
                "rows that the segment of an expert is padded to in the psum layout");
    d.attribute("use_tma_aligned_col_major_sf", &op::use_tma_aligned_col_major_sf,
                "out_sf is column-major, columns 16-byte aligned");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_packed_ue8m0", &op::use_packed_ue8m0,
                "out_sf holds four exponents per int32; needs round_sf");
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 64");
    d.kept("num_per_channels is 32, 128 or hidden_size");
    d.kept("column-major scales need num_per_channels 32 or 128");
    d.kept(
        "pos_to_token_topk needs topk_weights; routed_scaling_factor needs topk_weights; clamped_count needs "
        "clamp_value");
    d.kept("num_expanded_tokens * ceil(hidden_size, 32) is at most 2^31 - 1 with clamped_count");
    d.kept("use_packed_ue8m0 needs round_sf");
    d.lifted("hidden_size is a multiple of 128");
    d.lifted("packed scales need the column-major layout");
    describe_routing_traps(d);
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
