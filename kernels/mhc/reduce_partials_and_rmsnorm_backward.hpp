#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Gradients of the RMS norm behind mhc.reduce_partials_and_rmsnorm with respect to the sums. With r[t, g] =
/// rsqrt(sqrsum / rms_group_size + norm_eps):
///   out_mul_grad[t, g, j] = out_grad[t, j] * r[t, g]
///   sqrsum_grad[t, g] = -1/2 * (sum_j out_grad[t, j] * out_mul[t, g, j]) * r / (sqrsum + norm_eps *
///   rms_group_size)
/// out_mul_grad is not rounded to tf32.
struct reduce_partials_and_rmsnorm_backward {
  static constexpr const char* name = "mhc.reduce_partials_and_rmsnorm_backward";

  tensor out_grad{};
  tensor out_mul{};
  tensor sqrsum{};
  tensor out_mul_grad{};
  tensor sqrsum_grad{};
  std::int64_t rms_group_size = 0;
  double norm_eps = 1e-6;

  static void describe(description<reduce_partials_and_rmsnorm_backward>& d) {
    using enum dtype;
    using p = reduce_partials_and_rmsnorm_backward;
    d.summary("gradients of mhc.reduce_partials_and_rmsnorm");
    d.tolerance("relative 1e-5; sqrsum_grad relative 1e-4");
    d.in("out_grad", &p::out_grad, "num_tokens, mhc_mult3", {f32}, "gradient of the logits");
    d.in("out_mul", &p::out_mul, "num_tokens, n_rms_group, mhc_mult3", {f32}, "saved sums");
    d.in("sqrsum", &p::sqrsum, "num_tokens, n_rms_group", {f32}, "saved sums");
    d.out("out_mul_grad", &p::out_mul_grad, "num_tokens, n_rms_group, mhc_mult3", {f32},
          "gradient of out_mul");
    d.out("sqrsum_grad", &p::sqrsum_grad, "num_tokens, n_rms_group", {f32}, "gradient of sqrsum");
    d.attribute("rms_group_size", &p::rms_group_size, "channels per RMS group");
    d.attribute("norm_eps", &p::norm_eps, "as in the forward pass");
    d.ignored({"n_splits"});
    d.kept("rms_group_size is at least 1");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
