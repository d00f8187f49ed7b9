#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// Gradients of the two RMS weights behind weight_fused, from partial gradients of it:
///   a = sum_p weight_fused_grad_partial[p], in order, in fp32
///   weight_hidden_grad = a * weight_embed;  weight_embed_grad = a * weight_hidden
/// With `accumulate` both are fma(a, weight, old). The two gradients must not share a buffer.
struct grad_w_reduce {
  static constexpr const char* name = "engram.grad_w_reduce";

  tensor weight_fused_grad_partial{};
  tensor weight_hidden{};
  tensor weight_embed{};
  tensor weight_hidden_grad{};
  tensor weight_embed_grad{};
  bool accumulate = false;

  static void describe(description<grad_w_reduce>& d) {
    using enum dtype;
    using p = grad_w_reduce;
    d.summary("gradients of the two weights of the engram gate");
    d.tolerance("calc_diff below 1e-10 against double precision");
    d.in("weight_fused_grad_partial", &p::weight_fused_grad_partial, "num_partials, mhc_mult, hidden_size",
         {f32}, "rows that add up to the gradient of weight_fused");
    d.in("weight_hidden", &p::weight_hidden, "mhc_mult, hidden_size", {bf16}, "weight of the hidden states");
    d.in("weight_embed", &p::weight_embed, "mhc_mult, hidden_size", {bf16}, "weight of the keys");
    d.inout("weight_hidden_grad", &p::weight_hidden_grad, "mhc_mult, hidden_size", {f32},
            "gradient of weight_hidden");
    d.inout("weight_embed_grad", &p::weight_embed_grad, "mhc_mult, hidden_size", {f32},
            "gradient of weight_embed");
    d.attribute("accumulate", &p::accumulate, "add to the gradients instead of overwriting them");
    d.kept("the two gradients are different buffers");
    d.lifted("hidden_size is a multiple of 256 or 512");
    d.lifted("num_partials is a multiple of 4");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::engram
