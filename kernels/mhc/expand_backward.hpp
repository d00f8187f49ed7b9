#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Gradient of mhc.expand: x_grad[t, h] = bf16(out_grad[t, 0, h] + out_grad[t, 1, h] + ...), added in fp32 in
/// this order.
struct expand_backward {
  static constexpr const char* name = "mhc.expand_backward";

  tensor out_grad{};
  tensor x_grad{};

  static void describe(description<expand_backward>& d) {
    using enum dtype;
    using p = expand_backward;
    d.summary("gradient of mhc.expand");
    d.tolerance("bits");
    d.in("out_grad", &p::out_grad, "num_tokens, mhc_mult, hidden_size", {bf16}, "gradient of the streams")
        .contiguous();
    d.out("x_grad", &p::x_grad, "num_tokens, hidden_size", {bf16}, "gradient of the embedding");
    d.kept("out_grad is contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
