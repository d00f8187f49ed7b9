#include <portile/kernels/moe/gate.hpp>
#include <portile/kernels/moe/moe_topk_gate_backward.hpp>

namespace portile::moe {

void moe_topk_gate_backward::check(checker& c) const {
  const std::int64_t k = c.dim("num_topk"), e = c.dim("num_experts"), tokens = c.dim("num_tokens"),
                     seqs = c.dim("num_seqs");
  c.need(scoring_from(scoring_func) == scoring::sqrtsoftplus, "scoring_func", scoring_func,
         "must be sqrtsoftplus");
  c.need(k <= e, "num_topk", k, "must be at most num_experts = " + std::to_string(e));
  c.need(k <= 32, "num_topk", k, "must be at most 32");
  c.need_both_or_none("mask", mask.defined(), "scores_sum_grad", scores_sum_grad.defined());
  if (!scores_sum_grad.defined()) return;
  c.need(seqs >= 1 && tokens % seqs == 0, "num_seqs", seqs,
         "must be at least 1 and divide num_tokens = " + std::to_string(tokens));
}

void moe_topk_gate_backward::infer(inference& i) const { i.out("logits_grad", dtype::f32); }

}  // namespace portile::moe
