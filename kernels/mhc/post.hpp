#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// New residual streams after a layer: post (x) layer output + comb^T residual. Per channel and out stream o,
/// in fp32 and in this order, rounded once:
///   acc = post_mix[t, o] * x[t, h];  acc = fma(comb_mix[t, i, o], residual[t, i, h], acc) for i = 0 ..
///   mhc_mult-1
/// The first index of comb_mix is the source stream. out must not share memory with residual.
struct post {
  static constexpr const char* name = "mhc.post";

  tensor x{};
  tensor residual{};
  tensor post_mix{};
  tensor comb_mix{};
  tensor out{};

  static void describe(description<post>& d) {
    using enum dtype;
    d.summary("spread a layer's output over the mixed residual streams");
    d.tolerance("bits");
    d.in("x", &post::x, "num_tokens, hidden_size", {bf16}, "output of the layer");
    d.in("residual", &post::residual, "num_tokens, mhc_mult, hidden_size", {bf16},
         "residual streams before the layer");
    d.in("post_mix", &post::post_mix, "num_tokens, mhc_mult", {f32}, "weight of x in each stream");
    d.in("comb_mix", &post::comb_mix, "num_tokens, mhc_mult, mhc_mult", {f32},
         "mixing of the streams, [in, out]");
    d.out("out", &post::out, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams after the layer");
    d.kept("hidden_size is a multiple of 8");
    d.lifted("hidden_size is a multiple of 128");
    d.lifted("x, post_mix and comb_mix are contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
