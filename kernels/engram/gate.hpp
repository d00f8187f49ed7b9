#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// Gates an embedding into each of the mhc_mult streams. Per token t and stream i, with w = weight_fused[i],
/// c = H^-0.5:
///   rstd_x = rsqrt(sum x^2 / H + eps);  rstd_k = rsqrt(sum k^2 / H + eps);  dot = sum_d x_d * w_d * k_d
///   s = dot * rstd_x * rstd_k * c;  u = copysign(sqrt(max(|s|, clamp_value)), s);  gate_score = sigmoid(u)
///   out_d = bf16(fma(gate_score, v_d, x_d)), or bf16(gate_score * v_d) without add_residual
/// all in fp32; s = +-0 takes its sign from copysign. Keys and values come packed (kv: the last row is v) or
/// apart. Masked tokens: k and v are not read, out is a bit copy of hidden_states (zeros without
/// add_residual), and dot, gate_score, rstd_x and rstd_k are zero. out may be the buffer of hidden_states
/// itself, but then nothing may be saved for the backward pass, which needs the original. Saving changes no
/// bit of out.
struct gate {
  static constexpr const char* name = "engram.gate";

  tensor hidden_states{};
  tensor kv{};
  tensor k{};
  tensor v{};
  tensor weight_fused{};
  tensor image_token_mask{};
  tensor out{};
  tensor dot{};
  tensor gate_score{};
  tensor rstd_x{};
  tensor rstd_k{};
  double clamp_value = 1e-6;
  double eps = 1e-6;
  bool add_residual = true;
  bool save_for_backward = true;

  static void describe(description<gate>& d) {
    using enum dtype;
    d.summary("gate an n-gram embedding into the residual streams");
    d.tolerance("calc_diff below 2e-10 of every output against double precision");
    d.in("hidden_states", &gate::hidden_states, "num_tokens, mhc_mult, hidden_size", {bf16},
         "the residual streams x");
    d.in("kv", &gate::kv, "num_tokens, mhc_mult + 1, hidden_size", {bf16},
         "keys, then the value, of each token")
        .optional();
    d.in("k", &gate::k, "num_tokens, mhc_mult, hidden_size", {bf16}, "keys, with strides").optional();
    d.in("v", &gate::v, "num_tokens, hidden_size", {bf16}, "values, with strides").optional();
    d.in("weight_fused", &gate::weight_fused, "mhc_mult, hidden_size", {f32}, "from engram.fused_weight");
    d.in("image_token_mask", &gate::image_token_mask, "num_tokens", {boolean}, "tokens that pass unchanged")
        .optional();
    d.out("out", &gate::out, "num_tokens, mhc_mult, hidden_size", {bf16}, "may be hidden_states itself");
    d.out("dot", &gate::dot, "num_tokens, mhc_mult", {f32}, "raw weighted dot product, for the backward pass")
        .optional();
    d.out("gate_score", &gate::gate_score, "num_tokens, mhc_mult", {f32}, "sigmoid, for the backward pass")
        .optional();
    d.out("rstd_x", &gate::rstd_x, "num_tokens, mhc_mult", {f32}, "1 / RMS of the hidden states").optional();
    d.out("rstd_k", &gate::rstd_k, "num_tokens, mhc_mult", {f32}, "1 / RMS of the keys").optional();
    d.attribute("clamp_value", &gate::clamp_value, "lower bound of |s| under the square root, above 0");
    d.attribute("eps", &gate::eps, "added to the mean squares");
    d.attribute("add_residual", &gate::add_residual, "out contains hidden_states");
    d.attribute("save_for_backward", &gate::save_for_backward,
                "infer lists dot, gate_score, rstd_x and rstd_k");
    d.kept("exactly one form: kv, or k and v");
    d.kept("clamp_value is above 0");
    d.kept("in place excludes saving for the backward pass");
    d.lifted("hidden_size is a multiple of 256 and at least 512");
    d.lifted("kv is contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::engram
