#include <portile/core/check.hpp>
#include <portile/kernels/engram/sinkhorn_step.hpp>

namespace portile::engram {

void sinkhorn_step::check(checker& c) const { c.need_multiple("head_dim", c.dim("head_dim"), 256); }

void sinkhorn_step::infer(inference& i) const {
  i.out("row_norm", dtype::f32);
  i.out("col_sumsq", dtype::f32);
}

}  // namespace portile::engram
