#include <portile/kernels/moe/gate.hpp>
#include <portile/kernels/moe/moe_topk_gate_forward.hpp>

namespace portile::moe {

void moe_topk_gate_forward::check(checker& c) const {
  c.need(scoring_from(scoring_func) == scoring::sqrtsoftplus, "scoring_func", scoring_func,
         "must be sqrtsoftplus");
  c.need_both_or_none("image_bias", image_bias.defined(), "image_token_mask", image_token_mask.defined());
  c.need(!to_physical_map.defined() || c.dim("map_columns") >= 1, "map_columns", c.dim("map_columns"),
         "must be at least 1");
  check_gate(c, *this);
}

void moe_topk_gate_forward::infer(inference& i) const {
  i.out("topk_idx", dtype::i64);
  i.out("topk_weights", dtype::f32);
  if (unmapped_topk_idx.defined()) i.out("unmapped_topk_idx", dtype::i64);
  if (scores.defined()) i.out("scores", dtype::f32);
}

}  // namespace portile::moe
