#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// The sums behind mhc.pre_norm_fn, cut into RMS groups and splits. K = mhc_mult * hidden_size is divided
/// into groups of rms_group_size; within a group, split s covers the columns floor(s * rms_group_size /
/// n_splits) up to the next:
///   out_mul_splitted[s, t, g, j] = sum_k residual[t, k] * tf32(fn[j, k]);  sqrsum_splitted[s, t, g] = sum_k
///   residual[t, k]^2
/// norm_weight must have been merged into fn. mhc.reduce_partials_and_rmsnorm finishes the work.
struct pre_norm_fn_partials {
  static constexpr const char* name = "mhc.pre_norm_fn_partials";

  tensor residual{};
  tensor fn{};
  tensor out_mul_splitted{};
  tensor sqrsum_splitted{};
  std::int64_t n_splits = 16;
  std::int64_t rms_group_size = 0;

  static void describe(description<pre_norm_fn_partials>& d) {
    using enum dtype;
    using p = pre_norm_fn_partials;
    d.summary("split-K partial sums of the mixing logits");
    d.tolerance("that of an fp32 sum over the channels of a split");
    d.in("residual", &p::residual, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.in("fn", &p::fn, "mhc_mult3, mhc_mult * hidden_size", {f32}, "mixing matrix, any number of rows");
    d.out("out_mul_splitted", &p::out_mul_splitted, "n_splits, num_tokens, n_rms_group, mhc_mult3", {f32},
          "partial products");
    d.out("sqrsum_splitted", &p::sqrsum_splitted, "n_splits, num_tokens, n_rms_group", {f32},
          "partial sums of squares");
    d.attribute("n_splits", &p::n_splits, "ranges that each group is cut into, at least 1");
    d.attribute("rms_group_size", &p::rms_group_size,
                "channels per RMS group, a divisor of mhc_mult * hidden_size");
    d.ignored({"norm_eps", "fn_is_tf32"});
    d.kept("hidden_size is a multiple of 8");
    d.kept("mhc_mult is 1 to 8");
    d.kept("n_splits is at least 1");
    d.kept("rms_group_size divides mhc_mult * hidden_size");
    d.lifted("n_splits is 1");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
