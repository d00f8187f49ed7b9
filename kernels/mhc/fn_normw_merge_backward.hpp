#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Gradients of mhc.fn_normw_merge, each only where its tensor is given:
///   fn_grad[j, k] = out_grad[j, k] * norm_weight[k], or fma(out_grad, norm_weight, old) with `accumulate`
///   norm_weight_grad[k] = sum_j out_grad[j, k] * fn[j, k], by fma in order from 0, then one addition with
///   `accumulate`
struct fn_normw_merge_backward {
  static constexpr const char* name = "mhc.fn_normw_merge_backward";

  tensor fn{};
  tensor norm_weight{};
  tensor out_grad{};
  tensor fn_grad{};
  tensor norm_weight_grad{};
  bool accumulate = false;

  static void describe(description<fn_normw_merge_backward>& d) {
    using enum dtype;
    using p = fn_normw_merge_backward;
    d.summary("gradients of mhc.fn_normw_merge");
    d.tolerance("that of an fp32 sum over num_rows");
    d.in("fn", &p::fn, "num_rows, num_cols", {f32}, "mixing matrix");
    d.in("norm_weight", &p::norm_weight, "num_cols", {f32}, "RMS weight");
    d.in("out_grad", &p::out_grad, "num_rows, num_cols", {f32}, "gradient of the merged matrix");
    d.inout("fn_grad", &p::fn_grad, "num_rows, num_cols", {f32}, "gradient of fn").optional();
    d.inout("norm_weight_grad", &p::norm_weight_grad, "num_cols", {f32}, "gradient of norm_weight")
        .optional();
    d.attribute("accumulate", &p::accumulate, "add to the gradients instead of overwriting them");
  }
  void check(checker&) const {}
  void infer(inference& i) const;
};

}  // namespace portile::mhc
