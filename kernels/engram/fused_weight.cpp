#include <portile/core/check.hpp>
#include <portile/kernels/engram/fused_weight.hpp>

namespace portile::engram {

void fused_weight::infer(inference& i) const { i.out("weight_fused", dtype::f32); }

}  // namespace portile::engram
