#include <portile/kernels/mhc/reduce_partials_and_rmsnorm.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void reduce_partials_and_rmsnorm::check(checker& c) const {
  c.need(rms_group_size >= 1, "rms_group_size", rms_group_size, "must be at least 1");
  c.need(c.dim("n_splits") >= 1, "n_splits", c.dim("n_splits"), "must be at least 1");
}

void reduce_partials_and_rmsnorm::infer(inference& i) const {
  if (save_for_backward) {
    i.out("out_mul", dtype::f32);
    i.out("sqrsum", dtype::f32);
  }
  i.out("out", dtype::f32);
}

}  // namespace portile::mhc
