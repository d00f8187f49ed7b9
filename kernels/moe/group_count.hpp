#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// out[g] = number of entries of group_idx that equal g. -1 counts nowhere, an entry out of range neither.
struct group_count {
  static constexpr const char* name = "moe.group_count";

  tensor group_idx{};
  tensor out{};
  std::int64_t num_groups = 0;

  static void describe(description<group_count>& d) {
    using enum dtype;
    using p = group_count;
    d.summary("how often each group occurs");
    d.tolerance("bits");
    d.in("group_idx", &p::group_idx, "num_tokens, num_topk", i64, "group of each slot, -1 for none")
        .contiguous();
    d.out("out", &p::out, "num_groups", i32, "count of each group");
    d.attribute("num_groups", &p::num_groups, "number of groups");
    d.ignored({"api"});
    d.kept("group_idx is contiguous");
    d.kept("num_tokens * num_topk < 2^31");
    d.trap("group_idx must be -1 or a group below num_groups");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
