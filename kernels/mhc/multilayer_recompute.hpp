#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Rebuilds the activations of a run of L sub-layers from the first residual streams, R = initial_residual:
///   for l = 0 .. L-1:  layer_input[l] = mhc.pre_apply_mix(R, pre_mix[l])
///                      if l < P:  R = residual[l] = mhc.post(layer_output[l], R, post_mix[l], comb_mix[l])
/// with the bits of those operations; R is rounded to bf16 in every layer. P is L or L-1; lists hold one
/// tensor per layer.
struct multilayer_recompute {
  static constexpr const char* name = "mhc.multilayer_recompute";

  tensor initial_residual{};
  tensor_list pre_mix{};
  tensor_list layer_output{};
  tensor_list post_mix{};
  tensor_list comb_mix{};
  tensor_list layer_input{};
  tensor_list residual{};

  static void describe(description<multilayer_recompute>& d) {
    using enum dtype;
    using p = multilayer_recompute;
    d.summary("rebuild layer inputs and residual streams of several layers");
    d.tolerance("bits of mhc.pre_apply_mix and mhc.post");
    d.in("initial_residual", &p::initial_residual, "num_tokens, mhc_mult, hidden_size", {bf16},
         "streams before the first layer");
    d.list(field_role::in, "pre_mix", &p::pre_mix, "num_tokens, mhc_mult", {f32}, "L weights of the streams");
    d.list(field_role::in, "layer_output", &p::layer_output, "num_tokens, hidden_size", {bf16},
           "P outputs of the layers");
    d.list(field_role::in, "post_mix", &p::post_mix, "num_tokens, mhc_mult", {f32},
           "P weights of the layers' outputs");
    d.list(field_role::in, "comb_mix", &p::comb_mix, "num_tokens, mhc_mult, mhc_mult", {f32},
           "P mixings of the streams, [in, out]");
    d.list(field_role::out, "layer_input", &p::layer_input, "num_tokens, hidden_size", {bf16},
           "L inputs of the layers");
    d.list(field_role::out, "residual", &p::residual, "num_tokens, mhc_mult, hidden_size", {bf16},
           "P streams after the layers");
    d.ignored({"num_layers", "num_post"});
    d.kept("at least one layer; lists of L or of P tensors, P = L or L-1");
    d.kept("hidden_size is a multiple of 8");
    d.kept("at most 64 layers");
    d.lifted("gcd(hidden_size, 512) of at least the block size");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
