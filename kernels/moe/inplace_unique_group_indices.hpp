#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// In each row of group_idx, from the left, a group that occurred before becomes -1; its first occurrence
/// stays. Negative entries stay as they are. An entry of num_groups or more becomes -1.
struct inplace_unique_group_indices {
  static constexpr const char* name = "moe.inplace_unique_group_indices";

  tensor group_idx{};
  std::int64_t num_groups = 0;

  static void describe(description<inplace_unique_group_indices>& d) {
    using enum dtype;
    using p = inplace_unique_group_indices;
    d.summary("keep only the first occurrence of each group in a row");
    d.tolerance("bits");
    d.inout("group_idx", &p::group_idx, "num_tokens, num_topk", i64, "group of each slot, -1 for none")
        .contiguous();
    d.attribute("num_groups", &p::num_groups, "number of groups");
    d.ignored({"api"});
    d.kept("group_idx is contiguous");
    d.kept("num_groups is at least 1");
    d.lifted("num_groups <= 128");
    d.trap("group_idx must be -1 or a group below num_groups");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
