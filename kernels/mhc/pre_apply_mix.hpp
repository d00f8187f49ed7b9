#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Input of a layer: the weighted sum of the residual streams. Per channel, in fp32 and in this order,
/// rounded once:
///   acc = 0;  acc = fma(mix[t, i], x[t, i, h], acc) for i = 0 .. mhc_mult-1;  out[t, h] = bf16(acc)
struct pre_apply_mix {
  static constexpr const char* name = "mhc.pre_apply_mix";

  tensor x{};
  tensor mix{};
  tensor out{};

  static void describe(description<pre_apply_mix>& d) {
    using enum dtype;
    d.summary("weighted sum of the residual streams");
    d.tolerance("bits");
    d.in("x", &pre_apply_mix::x, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.in("mix", &pre_apply_mix::mix, "num_tokens, mhc_mult", {f32}, "weight of each stream");
    d.out("out", &pre_apply_mix::out, "num_tokens, hidden_size", {bf16}, "input of the layer");
    d.kept("hidden_size is a multiple of 8");
    d.lifted("gcd(hidden_size, 1024) of at least the block size");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
