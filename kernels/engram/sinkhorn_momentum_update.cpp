#include <portile/core/check.hpp>
#include <portile/kernels/engram/sinkhorn_momentum_update.hpp>

namespace portile::engram {

void sinkhorn_momentum_update::infer(inference& i) const { i.out("out", dtype::f32); }

}  // namespace portile::engram
