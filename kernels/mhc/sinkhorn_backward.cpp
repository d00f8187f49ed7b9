#include <portile/kernels/mhc/sinkhorn_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void sinkhorn_backward::check(checker& c) const {
  check_small_mult(c);
  check_repeat(c, "repeat", repeat);
}

void sinkhorn_backward::infer(inference& i) const { i.out("x_grad", dtype::f32); }

}  // namespace portile::mhc
