#include <portile/kernels/mhc/pre_norm_fn.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void pre_norm_fn::check(checker& c) const {
  check_small_mult(c);
  check_hidden(c);
  c.need(n_splits >= 1, "n_splits", n_splits, "must be at least 1");
}

void pre_norm_fn::infer(inference& i) const {
  if (save_for_backward) {
    i.out("out_mul", dtype::f32);
    i.out("sqrsum", dtype::f32);
  }
  i.out("out", dtype::f32);
}

}  // namespace portile::mhc
