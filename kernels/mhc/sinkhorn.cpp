#include <portile/kernels/mhc/sinkhorn.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void sinkhorn::check(checker& c) const {
  check_small_mult(c);
  check_repeat(c, "repeat", repeat);
}

void sinkhorn::infer(inference& i) const { i.out("out", dtype::f32); }

}  // namespace portile::mhc
