#pragma once
#include <portile/core/problem.hpp>

namespace portile {
class composer;
}

namespace portile::chain {

/// The engram gate from its two weights, forward and, where gradients are given, backward:
/// engram.fused_weight, engram.gate, engram.gate_backward, engram.grad_w_reduce. Tokens may have any number
/// of dimensions, "*" below, as long as they have one common stride. Keys and values come packed in kv, or
/// apart in k and v. With `accumulate` the gradients of the weights are added to.
struct engram_gate_fn {
  static constexpr const char* name = "chain.engram_gate_fn";

  tensor hidden_states{};
  tensor kv{};
  tensor k{};
  tensor v{};
  tensor weight_hidden{};
  tensor weight_embed{};
  tensor image_token_mask{};
  tensor out_grad{};
  tensor out{};
  tensor hidden_states_grad{};
  tensor kv_grad{};
  tensor k_grad{};
  tensor v_grad{};
  tensor weight_hidden_grad{};
  tensor weight_embed_grad{};
  double clamp_value = 1e-6;
  double eps = 1e-6;
  bool add_residual = true;
  bool accumulate = false;

  static void describe(description<engram_gate_fn>& d) {
    using p = engram_gate_fn;
    using enum dtype;
    d.summary("the engram gate from its two weights, with its gradients");
    d.tolerance("those of its steps");
    d.in("hidden_states", &p::hidden_states, "..., mhc_mult, hidden_size", {bf16},
         "residual streams [*, mhc_mult, hidden_size]");
    d.in("kv", &p::kv, "..., (mhc_mult + 1) * hidden_size", {bf16}, "keys, then the value, of each token")
        .optional();
    d.in("k", &p::k, "..., mhc_mult, hidden_size", {bf16}, "keys").optional();
    d.in("v", &p::v, "..., hidden_size", {bf16}, "values").optional();
    d.in("weight_hidden", &p::weight_hidden, "mhc_mult, hidden_size", {bf16}, "weight of the hidden states");
    d.in("weight_embed", &p::weight_embed, "mhc_mult, hidden_size", {bf16}, "weight of the keys");
    d.in("image_token_mask", &p::image_token_mask, "...", {boolean}, "tokens that pass unchanged").optional();
    d.in("out_grad", &p::out_grad, "..., mhc_mult, hidden_size", {bf16}, "gradient of out").optional();
    d.out("out", &p::out, "..., mhc_mult, hidden_size", {bf16}, "gated streams");
    d.out("hidden_states_grad", &p::hidden_states_grad, "..., mhc_mult, hidden_size", {bf16},
          "gradient of hidden_states")
        .optional();
    d.out("kv_grad", &p::kv_grad, "..., (mhc_mult + 1) * hidden_size", {bf16}, "gradient of kv").optional();
    d.out("k_grad", &p::k_grad, "..., mhc_mult, hidden_size", {bf16}, "gradient of k").optional();
    d.out("v_grad", &p::v_grad, "..., hidden_size", {bf16}, "gradient of v").optional();
    d.inout("weight_hidden_grad", &p::weight_hidden_grad, "mhc_mult, hidden_size", {f32},
            "gradient of weight_hidden")
        .optional();
    d.inout("weight_embed_grad", &p::weight_embed_grad, "mhc_mult, hidden_size", {f32},
            "gradient of weight_embed")
        .optional();
    d.attribute("clamp_value", &p::clamp_value, "as in engram.gate");
    d.attribute("eps", &p::eps, "as in engram.gate");
    d.attribute("add_residual", &p::add_residual, "as in engram.gate");
    d.attribute("accumulate", &p::accumulate,
                "add to the gradients of the weights instead of overwriting them");
    d.kept("exactly one form: kv, or k and v; gradients in the same form");
    d.kept("all tensors have the token dimensions of hidden_states, with one common stride in each");
    d.kept("gradients need out_grad; those of the weights come together, in different buffers");
    d.lifted("inputs are contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
  void compose(composer& c) const;
};

}  // namespace portile::chain
