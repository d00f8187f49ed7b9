#include <portile/core/check.hpp>
#include <portile/kernels/engram/sinkhorn_step_reduce.hpp>

namespace portile::engram {

void sinkhorn_step_reduce::check(checker& c) const { c.need_multiple("head_dim", c.dim("head_dim"), 256); }

void sinkhorn_step_reduce::infer(inference& i) const { i.out("col_sumsq", dtype::f32); }

}  // namespace portile::engram
