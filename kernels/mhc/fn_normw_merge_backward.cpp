#include <portile/kernels/mhc/fn_normw_merge_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void fn_normw_merge_backward::infer(inference& i) const {
  i.out("fn_grad", dtype::f32);
  i.out("norm_weight_grad", dtype::f32);
}

}  // namespace portile::mhc
