#include <portile/core/check.hpp>
#include <portile/kernels/moe/inplace_unique_group_indices.hpp>

namespace portile::moe {

void inplace_unique_group_indices::check(checker& c) const {
  c.need(num_groups >= 1, "num_groups", num_groups, "must be at least 1");
}

void inplace_unique_group_indices::infer(inference& i) const { i.out("group_idx", dtype::i64); }

}  // namespace portile::moe
