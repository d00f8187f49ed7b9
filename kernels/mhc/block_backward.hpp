#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// The gradient of a block's residual streams in one pass, with one rounding. The streams are consumed three
/// times: by mhc.post (D = out_grad, comb_mix), by mhc.pre_apply_mix (og = layer_input_grad, pre_mix) and by
/// mhc.pre_norm_fn (mixes_grad, the gradient of its logits; mg, fn_r, sqrsum_grad as in
/// mhc.pre_norm_fn_backward). Per token, in fp32 and in this order:
///   residual_grad[i, h] = bf16(sum_o comb_mix[i, o] * D[o, h] + pre_mix[i] * og[h]
///                              + sum_j mg[j] * fn_r[j, i*H + h] + 2 * residual[i, h] * sqrsum_grad)
/// fn_grad and norm_weight_grad, where given, are those of mhc.pre_norm_fn_backward. With `head` fn has
/// mhc_mult rows and no mhc.post follows: out_grad and comb_mix are absent.
struct block_backward {
  static constexpr const char* name = "mhc.block_backward";

  tensor residual{};
  tensor fn{};
  tensor norm_weight{};
  tensor out_mul{};
  tensor sqrsum{};
  tensor mixes_grad{};
  tensor pre_mix{};
  tensor layer_input_grad{};
  tensor comb_mix{};
  tensor out_grad{};
  tensor residual_grad{};
  tensor fn_grad{};
  tensor norm_weight_grad{};
  double norm_eps = 1e-6;
  bool head = false;
  bool accumulate = false;

  static void describe(description<block_backward>& d) {
    using enum dtype;
    using p = block_backward;
    d.summary("gradient of a block's residual streams, fused, rounded once");
    d.tolerance("residual_grad relative 1.6e-2 (bf16); the others as in mhc.pre_norm_fn_backward");
    d.in("residual", &p::residual, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.in("fn", &p::fn, "mhc_mult * (head ? 1 : mhc_mult + 2), mhc_mult * hidden_size", {f32},
         "mixing matrix, not merged");
    d.in("norm_weight", &p::norm_weight, "mhc_mult * hidden_size", {f32}, "RMS weight, merged into fn")
        .optional();
    d.in("out_mul", &p::out_mul, "num_tokens, mhc_mult * (head ? 1 : mhc_mult + 2)", {f32},
         "saved by mhc.pre");
    d.in("sqrsum", &p::sqrsum, "num_tokens", {f32}, "saved by mhc.pre");
    d.in("mixes_grad", &p::mixes_grad, "num_tokens, mhc_mult * (head ? 1 : mhc_mult + 2)", {f32},
         "x_grad of mhc.pre_split_mixes_backward");
    d.in("pre_mix", &p::pre_mix, "num_tokens, mhc_mult", {f32}, "saved by mhc.pre");
    d.in("layer_input_grad", &p::layer_input_grad, "num_tokens, hidden_size", {bf16},
         "gradient of the layer's input");
    d.in("comb_mix", &p::comb_mix, "num_tokens, mhc_mult, mhc_mult", {f32},
         "mixing of the streams, [in, out]")
        .optional();
    d.in("out_grad", &p::out_grad, "num_tokens, mhc_mult, hidden_size", {bf16},
         "gradient of the streams after the block")
        .optional();
    d.out("residual_grad", &p::residual_grad, "num_tokens, mhc_mult, hidden_size", {bf16},
          "gradient of residual");
    d.inout("fn_grad", &p::fn_grad, "mhc_mult * (head ? 1 : mhc_mult + 2), mhc_mult * hidden_size", {f32},
            "gradient of fn")
        .optional();
    d.inout("norm_weight_grad", &p::norm_weight_grad, "mhc_mult * hidden_size", {f32},
            "gradient of norm_weight")
        .optional();
    d.attribute("norm_eps", &p::norm_eps, "as in mhc.pre");
    d.attribute("head", &p::head, "gradient of the model's head");
    d.attribute("accumulate", &p::accumulate,
                "add to fn_grad and norm_weight_grad instead of overwriting them");
    d.kept("hidden_size is a multiple of 8");
    d.kept("mhc_mult is 1 to 8");
    d.kept("norm_weight_grad only with norm_weight");
    d.kept("out_grad and comb_mix exactly without head");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
