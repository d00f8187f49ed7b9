#include <portile/kernels/mhc/fn_normw_merge.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void fn_normw_merge::infer(inference& i) const { i.out("out", dtype::f32); }

}  // namespace portile::mhc
