#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Gradient of mhc.sinkhorn from its input alone; the iterates are recomputed. X_q is the matrix that enters
/// normalisation step q (1: columns of softmax + eps, then rows, columns, ...; 2 * repeat - 1 steps) and S_q
/// its sums + eps. From the last step to the first, sums along the step's dimension:  g = (g - sum(g * X_q) /
/// S_q) / S_q;  then, with P the softmax without eps,  x_grad = (g - rowsum(g * P)) * P. All in fp32.
struct sinkhorn_backward {
  static constexpr const char* name = "mhc.sinkhorn_backward";

  tensor x{};
  tensor out_grad{};
  tensor x_grad{};
  std::int64_t repeat = 10;
  double eps = 1e-6;

  static void describe(description<sinkhorn_backward>& d) {
    using enum dtype;
    using p = sinkhorn_backward;
    d.summary("gradient of mhc.sinkhorn");
    d.tolerance("relative 1e-4, absolute 1e-5");
    d.in("x", &p::x, "num_tokens, mhc_mult, mhc_mult", {f32}, "logits, [in, out]");
    d.in("out_grad", &p::out_grad, "num_tokens, mhc_mult, mhc_mult", {f32},
         "gradient of the normalised matrices");
    d.out("x_grad", &p::x_grad, "num_tokens, mhc_mult, mhc_mult", {f32}, "gradient of x");
    d.attribute("repeat", &p::repeat, "as in mhc.sinkhorn");
    d.attribute("eps", &p::eps, "as in mhc.sinkhorn");
    d.kept("repeat is 1 to 65536");
    d.kept("mhc_mult is 1 to 8");
    d.lifted("mhc_mult is 4");
    d.lifted("repeat is at most about 45");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
