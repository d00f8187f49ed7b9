#include <portile/core/check.hpp>
#include <portile/kernels/moe/topk_gate.hpp>

namespace portile::moe {

void topk_gate::check(checker& c) const {
  c.need(num_topk >= 1, "num_topk", num_topk, "must be at least 1");
  c.need(num_topk <= c.dim("num_experts"), "num_topk", num_topk,
         "must be at most num_experts = " + std::to_string(c.dim("num_experts")));
}

void topk_gate::infer(inference& i) const { i.out("topk_idx", dtype::i64); }

}  // namespace portile::moe
