#pragma once
#include <portile/kernels/quant/swiglu.hpp>

namespace portile::quant {

/// SwiGLU of x = [left | right], weighted, in the type of out:
///   l = min(left, c), r = max(min(right, c), -c) with a clamp value c
///   out = ((l / (1 + exp(-l))) * r) * w      fp32, in this order, rounded once
/// w is 1 or topk_weights[row], times routed_scaling_factor in fp32. Rows that count: all, or those of the
/// psum layout (expert e owns rows [align(psum[e-1], token_alignment), psum[e])); other rows are not read and
/// their results stay as they are. clamped_count is added to: #(left > c), #(right > c), #(right < -c),
/// number of activations. exp is core/numeric's.
struct swiglu_forward {
  static constexpr const char* name = "quant.swiglu_forward";

  tensor x{};
  tensor psum_num_tokens_per_expert{};
  tensor topk_weights{};
  tensor out{};
  tensor clamped_count{};
  word fmt{};
  std::optional<double> routed_scaling_factor{};
  std::optional<double> clamp_value{};
  std::int64_t token_alignment = 128;

  static void describe(description<swiglu_forward>& d) {
    using enum dtype;
    using op = swiglu_forward;
    d.summary("SwiGLU of the rows of the experts, in bf16 or f32");
    d.tolerance("bf16: bits; f32: rtol 1e-5 or 1e-6 of the row's largest value");
    d.in("x", &op::x, "num_expanded_tokens, 2 * hidden_size", {bf16, f32},
         "left and right half side by side");
    d.in("psum_num_tokens_per_expert", &op::psum_num_tokens_per_expert, "num_experts", i32,
         "end row of each expert")
        .optional();
    d.in("topk_weights", &op::topk_weights, "num_expanded_tokens", f32, "weight of each row").optional();
    d.out("out", &op::out, "num_expanded_tokens, hidden_size", {bf16, f32}, "activations");
    d.inout("clamped_count", &op::clamped_count, "4", i64, "counters that are added to; needs clamp_value")
        .optional();
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "bf16", "fp32"});
    d.attribute("routed_scaling_factor", &op::routed_scaling_factor, "multiplies every weight");
    d.attribute("clamp_value", &op::clamp_value, "bound of left from above and of right on both sides");
    d.attribute("token_alignment", &op::token_alignment,
                "rows that the segment of an expert is padded to in the psum layout");
    d.ignored({"api", "use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0"});
    d.kept("hidden_size is a multiple of 64");
    d.kept("routed_scaling_factor needs topk_weights; clamped_count needs clamp_value");
    d.kept("num_expanded_tokens * ceil(hidden_size, 32) is at most 2^31 - 1 with clamped_count");
    describe_routing_traps(d);
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
