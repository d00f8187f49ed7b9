#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// Momentum with optional Nesterov look-ahead. b = float(beta1), a = float(1 - beta1), the difference taken
/// in double:
///   m' = fma(m, b, a * g), the product rounded first;  momentum_buffer = m' in its own type
///   out = nesterov ? fma(g, a, b * m') : m', with the m' before rounding to the buffer's type
struct sinkhorn_momentum_update {
  static constexpr const char* name = "engram.sinkhorn_momentum_update";

  tensor grad{};
  tensor momentum_buffer{};
  tensor out{};
  double beta1 = 0.95;
  bool nesterov = true;

  static void describe(description<sinkhorn_momentum_update>& d) {
    using enum dtype;
    using p = sinkhorn_momentum_update;
    d.summary("momentum step of the Engram-Sinkhorn optimiser");
    d.tolerance("bits");
    d.in("grad", &p::grad, "numel", {f32, bf16}, "gradient, flat");
    d.inout("momentum_buffer", &p::momentum_buffer, "numel", {f32, bf16}, "momentum, updated in place");
    d.out("out", &p::out, "numel", {f32}, "matrix of the Sinkhorn steps");
    d.attribute("beta1", &p::beta1, "decay of the momentum");
    d.attribute("nesterov", &p::nesterov, "out looks one step ahead");
    d.lifted("numel is a multiple of 256");
  }
  void check(checker&) const {}
  void infer(inference& i) const;
};

}  // namespace portile::engram
