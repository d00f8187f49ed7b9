#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Merges the RMS weight into the mixing matrix: out[j, k] = fn[j, k] * norm_weight[k], one product each.
struct fn_normw_merge {
  static constexpr const char* name = "mhc.fn_normw_merge";

  tensor fn{};
  tensor norm_weight{};
  tensor out{};

  static void describe(description<fn_normw_merge>& d) {
    using enum dtype;
    using p = fn_normw_merge;
    d.summary("mixing matrix times the RMS weight");
    d.tolerance("bits");
    d.in("fn", &p::fn, "num_rows, num_cols", {f32}, "mixing matrix");
    d.in("norm_weight", &p::norm_weight, "num_cols", {f32}, "RMS weight");
    d.out("out", &p::out, "num_rows, num_cols", {f32}, "merged matrix");
  }
  void check(checker&) const {}
  void infer(inference& i) const;
};

}  // namespace portile::mhc
