#include <portile/core/check.hpp>
#include <portile/kernels/engram/sinkhorn_col_update.hpp>

namespace portile::engram {

void sinkhorn_col_update::check(checker& c) const {
  c.need(ratio >= 0, "ratio", ratio, "must not be negative");
}

void sinkhorn_col_update::infer(inference& i) const { i.out("col_sumsq", dtype::f32); }

}  // namespace portile::engram
