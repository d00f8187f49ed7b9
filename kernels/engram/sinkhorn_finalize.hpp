#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// The normalised matrix itself: y_d = (row_scale * M_d) * col_scale_d;  out_d = y_d * (alpha / (sqrt(sum_d
/// y_d^2) + eps)). A row of norm 0 gives zeros. out may be the buffer of matrix.
struct sinkhorn_finalize {
  static constexpr const char* name = "engram.sinkhorn_finalize";

  tensor matrix{};
  tensor row_scale{};
  tensor col_scale{};
  tensor out{};
  double eps = 1e-20;
  double alpha = 1.0;

  static void describe(description<sinkhorn_finalize>& d) {
    using enum dtype;
    using p = sinkhorn_finalize;
    d.summary("result of the Engram-Sinkhorn optimiser");
    d.tolerance("relative 1.3e-6, absolute 1e-5");
    d.in("matrix", &p::matrix, "num_rows, head_dim", {f32}, "the matrix M");
    d.in("row_scale", &p::row_scale, "num_rows", {f32}, "factor of each row");
    d.in("col_scale", &p::col_scale, "head_dim", {f32}, "factor of each column");
    d.out("out", &p::out, "num_rows, head_dim", {f32}, "may be matrix itself");
    d.attribute("eps", &p::eps, "added to the norm");
    d.attribute("alpha", &p::alpha, "norm of each row of out, such as sqrt(head_dim)");
    d.lifted("head_dim is a multiple of 256");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::engram
