#pragma once
#include <portile/core/problem.hpp>

namespace portile::norm {

/// Gradient of norm.forward, from its normalised input x (its residual_out) and rstd. In fp32, per row:
///   xh = x * rstd,  d = out_grad * out_scale,  D = d * weight (without weight D = d),  m = (sum of xh * D) /
///   hidden_size x_grad = (D - xh * m) * rstd [+ residual_out_grad], rounded once to the type of x
///   weight_grad[j] = sum over rows of xh * d [+ weight_grad[j] with `accumulate`], rounded once
/// Both sums are taken in fp32 or better, in an order that does not depend on the launch. Without rows
/// weight_grad is zero, or as it is with `accumulate`. NaN and infinities follow IEEE arithmetic. x_grad may
/// be the memory of out_grad. Tolerance: f32 rtol 1e-4 and 1e-5 of the row's maximum, bf16 2 ulp or 1e-3 of
/// it; weight_grad rtol and atol 1e-4.
struct backward {
  static constexpr const char* name = "norm.backward";

  tensor out_grad{};
  tensor x{};
  tensor rstd{};
  tensor weight{};
  tensor residual_out_grad{};
  tensor x_grad{};
  tensor weight_grad{};
  double out_scale = 1;
  bool accumulate = false;

  static void describe(description<backward>& d) {
    using enum dtype;
    d.summary("gradients of norm.forward");
    d.tolerance("f32 rtol 1e-4, bf16 2 ulp or 1e-3 of the row's maximum; weight_grad rtol and atol 1e-4");
    d.in("out_grad", &backward::out_grad, "num_tokens, hidden_size", {bf16, f32},
         "gradient of the result; type of x");
    d.in("x", &backward::x, "num_tokens, hidden_size", {bf16, f32},
         "what was normalised: residual_out of the forward pass");
    d.in("rstd", &backward::rstd, "num_tokens", {f32}, "of the forward pass").contiguous();
    d.in("weight", &backward::weight, "hidden_size", {bf16, f32}, "factor of each channel; type of x")
        .optional()
        .contiguous();
    d.in("residual_out_grad", &backward::residual_out_grad, "num_tokens, hidden_size", {bf16, f32},
         "gradient of residual_out; type of x")
        .optional();
    d.out("x_grad", &backward::x_grad, "num_tokens, hidden_size", {bf16, f32},
          "gradient of x and of residual; type of x");
    d.inout("weight_grad", &backward::weight_grad, "hidden_size", {f32, bf16}, "gradient of weight")
        .optional()
        .contiguous();
    d.attribute("out_scale", &backward::out_scale, "factor of the result in the forward pass");
    d.attribute("accumulate", &backward::accumulate, "add to weight_grad instead of overwriting it");
    d.ignored({"api"});
    d.kept("hidden_size is 1 to 8192 and a multiple of 32");
    d.kept("row strides of out_grad, x and residual_out_grad are multiples of 16 elements");
    d.kept("rstd, weight and weight_grad are contiguous; weight_grad needs weight");
    d.lifted("x_grad is contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::norm
