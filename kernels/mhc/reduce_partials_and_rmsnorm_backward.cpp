#include <portile/kernels/mhc/reduce_partials_and_rmsnorm_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void reduce_partials_and_rmsnorm_backward::check(checker& c) const {
  c.need(rms_group_size >= 1, "rms_group_size", rms_group_size, "must be at least 1");
}

void reduce_partials_and_rmsnorm_backward::infer(inference& i) const {
  i.out("out_mul_grad", dtype::f32);
  i.out("sqrsum_grad", dtype::f32);
}

}  // namespace portile::mhc
