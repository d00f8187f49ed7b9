#include <portile/core/check.hpp>
#include <portile/kernels/moe/normalize_weight.hpp>

namespace portile::moe {

void normalize_weight::check(checker& c) const {
  c.need(sum_order != "butterfly" || c.dim("num_topk") <= 32, "num_topk", c.dim("num_topk"),
         "must be at most 32 with sum_order 'butterfly', which has 32 lanes");
}

void normalize_weight::infer(inference& i) const {
  i.out("denominator", dtype::f32);
  i.out("normalized", dtype::f32);
}

}  // namespace portile::moe
