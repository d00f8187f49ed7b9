#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// engram.sinkhorn_step_reduce and the column step behind it in one: with s = sum_p col_sumsq_partial[p, d],
///   col_scale[d] /= sqrt(s * ratio) + eps
/// A column of zeros (s * ratio = 0) keeps its scale. col_sumsq, where given, receives s, with the bits of
/// step_reduce.
struct sinkhorn_col_update {
  static constexpr const char* name = "engram.sinkhorn_col_update";

  tensor col_sumsq_partial{};
  tensor col_scale{};
  tensor col_sumsq{};
  double ratio = 1.0;
  double eps = 1e-20;

  static void describe(description<sinkhorn_col_update>& d) {
    using enum dtype;
    using p = sinkhorn_col_update;
    d.summary("column step of the Engram-Sinkhorn optimiser");
    d.tolerance("relative 3e-6, absolute 1e-5");
    d.in("col_sumsq_partial", &p::col_sumsq_partial, "num_partials, head_dim", {f32},
         "partial rows, or one row of totals");
    d.inout("col_scale", &p::col_scale, "head_dim", {f32}, "factor of each column, updated");
    d.out("col_sumsq", &p::col_sumsq, "head_dim", {f32}, "sum of the partial rows").optional();
    d.attribute("ratio", &p::ratio, "factor of the sums, such as head_dim / num_rows, not negative");
    d.attribute("eps", &p::eps, "added to the norm");
    d.kept("ratio is not negative");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::engram
