#include <portile/core/check.hpp>
#include <portile/kernels/moe/group_count.hpp>

namespace portile::moe {

void group_count::check(checker& c) const {
  c.need(group_idx.numel() < std::int64_t{1} << 31, "num_tokens * num_topk", group_idx.numel(),
         "must be below 2^31: counts are int32");
}

void group_count::infer(inference& i) const { i.out("out", dtype::i32); }

}  // namespace portile::moe
