#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// Total of partial column sums: col_sumsq[d] = sum_p col_sumsq_partial[p, d], overwritten. The result is
/// that of an exact sum rounded to fp32, within rtol 3e-6.
struct sinkhorn_step_reduce {
  static constexpr const char* name = "engram.sinkhorn_step_reduce";

  tensor col_sumsq_partial{};
  tensor col_sumsq{};

  static void describe(description<sinkhorn_step_reduce>& d) {
    using enum dtype;
    d.summary("add up partial column sums of the Engram-Sinkhorn optimiser");
    d.tolerance("relative 3e-6, absolute 1e-5");
    d.in("col_sumsq_partial", &sinkhorn_step_reduce::col_sumsq_partial, "num_partials, head_dim", {f32},
         "partial rows");
    d.out("col_sumsq", &sinkhorn_step_reduce::col_sumsq, "head_dim", {f32}, "their sum");
    d.kept("head_dim is a multiple of 256");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::engram
