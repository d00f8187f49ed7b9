#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Gradients of mhc.post. With D = out_grad:
///   x_grad[h] = bf16(sum_o post_mix[o] * D[o, h]);  residual_grad[i, h] = bf16(sum_o comb_mix[i, o] * D[o,
///   h]) post_mix_grad[o] = sum_h x[h] * D[o, h];  comb_mix_grad[i, o] = sum_h residual[i, h] * D[o, h]
/// The sums over o are fma in order from 0. residual_grad is computed where it is given; mhc.block_backward
/// does it in its own pass.
struct post_backward {
  static constexpr const char* name = "mhc.post_backward";

  tensor x{};
  tensor residual{};
  tensor post_mix{};
  tensor comb_mix{};
  tensor out_grad{};
  tensor x_grad{};
  tensor residual_grad{};
  tensor post_mix_grad{};
  tensor comb_mix_grad{};

  static void describe(description<post_backward>& d) {
    using enum dtype;
    using p = post_backward;
    d.summary("gradients of mhc.post");
    d.tolerance("x_grad, residual_grad: bits; the others: that of an fp32 sum over hidden_size");
    d.in("x", &p::x, "num_tokens, hidden_size", {bf16}, "output of the layer");
    d.in("residual", &p::residual, "num_tokens, mhc_mult, hidden_size", {bf16},
         "residual streams before the layer");
    d.in("post_mix", &p::post_mix, "num_tokens, mhc_mult", {f32}, "weight of x in each stream");
    d.in("comb_mix", &p::comb_mix, "num_tokens, mhc_mult, mhc_mult", {f32},
         "mixing of the streams, [in, out]");
    d.in("out_grad", &p::out_grad, "num_tokens, mhc_mult, hidden_size", {bf16},
         "gradient of the streams after the layer");
    d.out("x_grad", &p::x_grad, "num_tokens, hidden_size", {bf16}, "gradient of x");
    d.out("residual_grad", &p::residual_grad, "num_tokens, mhc_mult, hidden_size", {bf16},
          "gradient of residual")
        .optional();
    d.out("post_mix_grad", &p::post_mix_grad, "num_tokens, mhc_mult", {f32}, "gradient of post_mix");
    d.out("comb_mix_grad", &p::comb_mix_grad, "num_tokens, mhc_mult, mhc_mult", {f32},
          "gradient of comb_mix");
    d.kept("hidden_size is a multiple of 8");
    d.lifted("mhc_mult is 4");
    d.lifted("out_grad is contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
