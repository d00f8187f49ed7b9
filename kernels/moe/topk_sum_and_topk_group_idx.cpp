#include <portile/core/check.hpp>
#include <portile/kernels/moe/topk_sum_and_topk_group_idx.hpp>

namespace portile::moe {

void topk_sum_and_topk_group_idx::check(checker& c) const {
  const std::int64_t groups = c.dim("num_groups"), size = c.dim("group_size");
  c.need_one_of<std::int64_t>("num_topk_sum", num_topk_sum, {1, 2});
  c.need(num_topk_sum <= size, "num_topk_sum", num_topk_sum,
         "must be at most group_size = " + std::to_string(size));
  c.need(num_topk_groups <= groups, "num_topk_groups", num_topk_groups,
         "must be at most num_groups = " + std::to_string(groups));
}

void topk_sum_and_topk_group_idx::infer(inference& i) const { i.out("topk_group_idx", dtype::i64); }

}  // namespace portile::moe
