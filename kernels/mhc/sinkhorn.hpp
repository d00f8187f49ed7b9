#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Makes each token's matrix nearly doubly stochastic. With rows along the last dimension, all in fp32:
///   A = softmax(x) over the last dimension + eps;  A /= column sums + eps
///   repeat - 1 times:  A /= row sums + eps;  A /= column sums + eps
/// so the softmax counts as the first row step and the last step is one over columns. out may be x itself.
struct sinkhorn {
  static constexpr const char* name = "mhc.sinkhorn";

  tensor x{};
  tensor out{};
  std::int64_t repeat = 10;
  double eps = 1e-6;

  static void describe(description<sinkhorn>& d) {
    using enum dtype;
    d.summary("Sinkhorn normalisation of the comb mixes");
    d.tolerance("relative 1.3e-6, absolute 1e-5");
    d.in("x", &sinkhorn::x, "num_tokens, mhc_mult, mhc_mult", {f32}, "logits, [in, out]");
    d.out("out", &sinkhorn::out, "num_tokens, mhc_mult, mhc_mult", {f32}, "normalised matrices");
    d.attribute("repeat", &sinkhorn::repeat, "row and column steps, at least 1");
    d.attribute("eps", &sinkhorn::eps, "added to the softmax and to every sum");
    d.kept("repeat is 1 to 65536");
    d.kept("mhc_mult is 1 to 8");
    d.lifted("mhc_mult is 4");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
