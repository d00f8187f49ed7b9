#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Gradients of mhc.pre_apply_mix:
///   mix_grad[t, i] = sum_h out_grad[t, h] * x[t, i, h]
///   x_grad[t, i, h] = bf16(mix[t, i] * out_grad[t, h]), or bf16(fma(mix, out_grad, old)) with `accumulate`
/// x_grad is computed where it is given; mhc.block_backward does it in its own pass.
struct pre_apply_mix_backward {
  static constexpr const char* name = "mhc.pre_apply_mix_backward";

  tensor x{};
  tensor mix{};
  tensor out_grad{};
  tensor x_grad{};
  tensor mix_grad{};
  bool accumulate = false;

  static void describe(description<pre_apply_mix_backward>& d) {
    using enum dtype;
    using p = pre_apply_mix_backward;
    d.summary("gradients of mhc.pre_apply_mix");
    d.tolerance("x_grad: bits; mix_grad: that of an fp32 sum over hidden_size");
    d.in("x", &p::x, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.in("mix", &p::mix, "num_tokens, mhc_mult", {f32}, "weight of each stream");
    d.in("out_grad", &p::out_grad, "num_tokens, hidden_size", {bf16}, "gradient of the layer's input");
    d.inout("x_grad", &p::x_grad, "num_tokens, mhc_mult, hidden_size", {bf16}, "gradient of the streams")
        .optional();
    d.out("mix_grad", &p::mix_grad, "num_tokens, mhc_mult", {f32}, "gradient of mix");
    d.attribute("accumulate", &p::accumulate, "add to x_grad instead of overwriting it");
    d.kept("hidden_size is a multiple of 8");
    d.lifted("gcd(hidden_size, 1024) of at least the block size");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
