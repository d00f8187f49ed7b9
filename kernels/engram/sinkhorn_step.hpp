#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// One row normalisation of the matrix kept as diag(row_scale) * M * diag(col_scale), which is never written:
///   y_d = (row_scale * M_d) * col_scale_d;  row_norm = sqrt(sum_d y_d^2);  inv = 1 / (row_norm + eps)
///   row_scale *= inv;  col_sumsq_d = sum over rows of (y_d * inv)^2
/// A row of norm 0 (an untouched embedding row) keeps its row_scale: dividing it by eps at every step would
/// end in inf * 0. Without rows col_sumsq is zero.
struct sinkhorn_step {
  static constexpr const char* name = "engram.sinkhorn_step";

  tensor matrix{};
  tensor col_scale{};
  tensor row_scale{};
  tensor row_norm{};
  tensor col_sumsq{};
  double eps = 1e-20;

  static void describe(description<sinkhorn_step>& d) {
    using enum dtype;
    using p = sinkhorn_step;
    d.summary("row step of the Engram-Sinkhorn optimiser");
    d.tolerance("relative 1.3e-6, absolute 1e-5");
    d.in("matrix", &p::matrix, "num_rows, head_dim", {f32}, "the matrix M");
    d.in("col_scale", &p::col_scale, "head_dim", {f32}, "factor of each column");
    d.inout("row_scale", &p::row_scale, "num_rows", {f32}, "factor of each row, updated");
    d.out("row_norm", &p::row_norm, "num_rows", {f32}, "norms of the scaled rows");
    d.out("col_sumsq", &p::col_sumsq, "head_dim", {f32}, "sums of squares of the normalised columns");
    d.attribute("eps", &p::eps, "added to the norm");
    d.kept("head_dim is a multiple of 256");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::engram
