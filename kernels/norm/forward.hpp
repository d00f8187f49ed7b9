#pragma once
#include <portile/core/problem.hpp>

namespace portile::norm {

/// RMSNorm of each row, with an optional residual added first:
///   n    = x + residual in fp32, rounded to the type of x; without residual n = x       -> residual_out
///   rstd = 1 / sqrt(sum of n^2 / hidden_size + eps)                                      -> rstd
///   out  = (n * rstd) * (weight * out_scale) in fp32, rounded to the type of x; without weight (n * rstd) *
///   out_scale
/// eps and out_scale are used as fp32. The sum is taken in fp32 or better, in an order that depends on
/// hidden_size alone, so that a row gives the same bits in any batch. NaN and infinities follow IEEE
/// arithmetic within their row; a row of zeros with eps = 0 gives NaN. residual_out may be the memory of x or
/// residual, and so may out. Tolerance: f32 within rtol 1e-5, bf16 within 1 ulp, rstd within rtol 2e-6,
/// residual_out to the bit.
struct forward {
  static constexpr const char* name = "norm.forward";

  tensor x{};
  tensor residual{};
  tensor weight{};
  tensor out{};
  tensor residual_out{};
  tensor rstd{};
  double eps = 1e-6;
  double out_scale = 1;
  bool with_rstd = false;

  static void describe(description<forward>& d) {
    using enum dtype;
    d.summary("RMSNorm with an optional residual");
    d.tolerance("f32 rtol 1e-5, bf16 1 ulp, rstd rtol 2e-6, residual_out bits");
    const char* rows = "num_tokens, hidden_size | batch, num_tokens, hidden_size";
    d.in("x", &forward::x, rows, {bf16, f32}, "rows to normalise");
    d.in("residual", &forward::residual, rows, {bf16, f32}, "added to x first; type of x").optional();
    d.in("weight", &forward::weight, "hidden_size", {bf16, f32}, "factor of each channel; type of x")
        .optional()
        .contiguous();
    d.out("out", &forward::out, rows, {bf16, f32}, "normalised rows; type of x");
    d.out("residual_out", &forward::residual_out, rows, {bf16, f32}, "x + residual, or x; type of x")
        .optional();
    d.out("rstd", &forward::rstd, "num_tokens | batch, num_tokens", {f32}, "reciprocal root mean square")
        .optional()
        .any_strides();
    d.attribute("eps", &forward::eps, "added to the mean of squares");
    d.attribute("out_scale", &forward::out_scale, "factor of the result");
    d.attribute("with_rstd", &forward::with_rstd, "infer lists rstd");
    d.ignored({"api"});
    d.kept("hidden_size is 1 to 8192 and a multiple of 16");
    d.kept("row and batch strides of x are multiples of 16 elements");
    d.kept("weight is contiguous and has the type of x");
    d.lifted("residual and preallocated results have the strides of x");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::norm
