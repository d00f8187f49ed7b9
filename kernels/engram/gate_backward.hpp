#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// Gradients of engram.gate. With G = out_grad, g = gate_score, rx = rstd_x, rk = rstd_k, c = H^-0.5, per
/// token and stream:
///   Q = 0 where |dot * rx * rk * c| < clamp_value, else dg * g * (1-g) * 0.5 * sqrt(c * rx * rk / |dot|), dg
///   = sum_d G_d * v_d hidden_states_grad_d = bf16(G_d + Q * (k_d * w_d - x_d * dot * rx^2 / H)), without G_d
///   when add_residual was false k_grad_d = bf16(Q * (x_d * w_d - k_d * dot * rk^2 / H));  v_grad_d =
///   bf16(sum_i G_id * g_i), streams in order weight_fused_grad[i, d] = sum_t Q * x_d * k_d, the total over
///   all tokens, added to the old one with `accumulate`
/// Masked tokens: hidden_states_grad is a bit copy of out_grad (zeros without add_residual), the other
/// gradients get nothing, and dot, gate_score, rstd_x, rstd_k are not read.
struct gate_backward {
  static constexpr const char* name = "engram.gate_backward";

  tensor out_grad{};
  tensor hidden_states{};
  tensor kv{};
  tensor k{};
  tensor v{};
  tensor weight_fused{};
  tensor dot{};
  tensor gate_score{};
  tensor rstd_x{};
  tensor rstd_k{};
  tensor image_token_mask{};
  tensor hidden_states_grad{};
  tensor kv_grad{};
  tensor k_grad{};
  tensor v_grad{};
  tensor weight_fused_grad{};
  double clamp_value = 1e-6;
  bool add_residual = true;
  bool accumulate = false;

  static void describe(description<gate_backward>& d) {
    using enum dtype;
    using p = gate_backward;
    d.summary("gradients of engram.gate");
    d.tolerance("calc_diff below 1e-8 of every output against double precision");
    d.in("out_grad", &p::out_grad, "num_tokens, mhc_mult, hidden_size", {bf16}, "gradient of out");
    d.in("hidden_states", &p::hidden_states, "num_tokens, mhc_mult, hidden_size", {bf16},
         "as in engram.gate");
    d.in("kv", &p::kv, "num_tokens, mhc_mult + 1, hidden_size", {bf16}, "keys, then the value, of each token")
        .optional();
    d.in("k", &p::k, "num_tokens, mhc_mult, hidden_size", {bf16}, "keys, with strides").optional();
    d.in("v", &p::v, "num_tokens, hidden_size", {bf16}, "values, with strides").optional();
    d.in("weight_fused", &p::weight_fused, "mhc_mult, hidden_size", {f32}, "as in engram.gate");
    d.in("dot", &p::dot, "num_tokens, mhc_mult", {f32}, "saved by engram.gate");
    d.in("gate_score", &p::gate_score, "num_tokens, mhc_mult", {f32}, "saved by engram.gate");
    d.in("rstd_x", &p::rstd_x, "num_tokens, mhc_mult", {f32}, "saved by engram.gate");
    d.in("rstd_k", &p::rstd_k, "num_tokens, mhc_mult", {f32}, "saved by engram.gate");
    d.in("image_token_mask", &p::image_token_mask, "num_tokens", {boolean}, "tokens that passed unchanged")
        .optional();
    d.out("hidden_states_grad", &p::hidden_states_grad, "num_tokens, mhc_mult, hidden_size", {bf16},
          "gradient of hidden_states");
    d.out("kv_grad", &p::kv_grad, "num_tokens, mhc_mult + 1, hidden_size", {bf16}, "gradient of kv")
        .optional();
    d.out("k_grad", &p::k_grad, "num_tokens, mhc_mult, hidden_size", {bf16}, "gradient of k").optional();
    d.out("v_grad", &p::v_grad, "num_tokens, hidden_size", {bf16}, "gradient of v").optional();
    d.inout("weight_fused_grad", &p::weight_fused_grad, "mhc_mult, hidden_size", {f32},
            "gradient of weight_fused, all tokens");
    d.attribute("clamp_value", &p::clamp_value, "as in engram.gate");
    d.attribute("add_residual", &p::add_residual, "as in engram.gate");
    d.attribute("accumulate", &p::accumulate, "add to weight_fused_grad instead of overwriting it");
    d.kept("exactly one form: kv and kv_grad, or k, v, k_grad and v_grad");
    d.kept("clamp_value is above 0");
    d.lifted("mhc_mult is 4");
    d.lifted("hidden_size is a multiple of 512 and at least 1024, or of 256 and at least 512");
    d.lifted("hidden_size is at most about 21 500");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::engram
