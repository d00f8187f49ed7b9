#include <portile/core/check.hpp>
#include <portile/kernels/moe/aux_fi.hpp>

namespace portile::moe {

void aux_fi::check(checker& c) const {
  c.need(num_aux_topk >= 1, "num_aux_topk", num_aux_topk, "must be at least 1");
}

void aux_fi::infer(inference& i) const { i.out("out", dtype::f32); }

}  // namespace portile::moe
