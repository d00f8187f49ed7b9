#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Adds split-K partial sums and applies the RMS norm, all in fp32:
///   out_mul[t, g, j] = sum_s out_mul_splitted[s, t, g, j], in order from 0;  sqrsum[t, g] likewise
///   out[t, j] = sum_g out_mul[t, g, j] * rsqrt(sqrsum[t, g] / rms_group_size + norm_eps), in order
/// With one group the sum over g is that one product. sqrsum = 0 with norm_eps = 0 gives what IEEE arithmetic
/// gives.
struct reduce_partials_and_rmsnorm {
  static constexpr const char* name = "mhc.reduce_partials_and_rmsnorm";

  tensor out_mul_splitted{};
  tensor sqrsum_splitted{};
  tensor out_mul{};
  tensor sqrsum{};
  tensor out{};
  std::int64_t rms_group_size = 0;
  double norm_eps = 1e-6;
  bool save_for_backward = true;

  static void describe(description<reduce_partials_and_rmsnorm>& d) {
    using enum dtype;
    using p = reduce_partials_and_rmsnorm;
    d.summary("add split-K partial sums of the mixing logits and normalise");
    d.tolerance("relative 1e-5 of the largest term");
    d.in("out_mul_splitted", &p::out_mul_splitted, "n_splits, num_tokens, n_rms_group, mhc_mult3", {f32},
         "partial products");
    d.in("sqrsum_splitted", &p::sqrsum_splitted, "n_splits, num_tokens, n_rms_group", {f32},
         "partial sums of squares");
    d.out("out_mul", &p::out_mul, "num_tokens, n_rms_group, mhc_mult3", {f32}, "sums, for the backward pass")
        .optional();
    d.out("sqrsum", &p::sqrsum, "num_tokens, n_rms_group", {f32}, "sums, for the backward pass").optional();
    d.out("out", &p::out, "num_tokens, mhc_mult3", {f32}, "mixing logits");
    d.attribute("rms_group_size", &p::rms_group_size, "channels per RMS group");
    d.attribute("norm_eps", &p::norm_eps, "added to the mean square");
    d.attribute("save_for_backward", &p::save_for_backward, "infer lists out_mul and sqrsum");
    d.ignored({"hidden_size"});
    d.kept("rms_group_size is at least 1");
    d.kept("at least one split");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
