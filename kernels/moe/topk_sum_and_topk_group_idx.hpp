#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// The best groups of experts of each token, best first. The score of a group is its largest score
/// (num_topk_sum = 1) or the fp32 sum of its two largest (num_topk_sum = 2; equal ones count twice). Groups
/// are ordered by (score descending, index ascending). In both steps the order is total as in moe.topk_gate:
/// NaN ranks below -Inf, and a group whose sum is NaN comes last.
struct topk_sum_and_topk_group_idx {
  static constexpr const char* name = "moe.topk_sum_and_topk_group_idx";

  tensor scores{};
  tensor topk_group_idx{};
  std::int64_t num_topk_sum = 2;
  std::int64_t num_topk_groups = 0;

  static void describe(description<topk_sum_and_topk_group_idx>& d) {
    using enum dtype;
    using p = topk_sum_and_topk_group_idx;
    d.summary("groups of experts with the largest sums of their best scores, in order");
    d.tolerance("bits");
    d.in("scores", &p::scores, "num_tokens, num_groups, group_size", f32,
         "score of each expert of each group")
        .contiguous();
    d.out("topk_group_idx", &p::topk_group_idx, "num_tokens, num_topk_groups", i64, "group ids, best first")
        .contiguous();
    d.attribute("num_topk_sum", &p::num_topk_sum, "scores in the sum of a group: 1 or 2");
    d.attribute("num_topk_groups", &p::num_topk_groups, "groups per token");
    d.ignored({"api"});
    d.kept("num_topk_sum is 1 or 2, and at most the experts of a group");
    d.kept("num_topk_groups <= num_groups");
    d.kept("scores is contiguous");
    d.lifted("num_groups <= 32");
    d.trap("scores must not be NaN");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
