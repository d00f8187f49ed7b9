#include <portile/kernels/mhc/pre_apply_mix_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void pre_apply_mix_backward::check(checker& c) const {
  check_mult(c);
  check_hidden(c);
}

void pre_apply_mix_backward::infer(inference& i) const {
  i.out("x_grad", dtype::bf16);
  i.out("mix_grad", dtype::f32);
}

}  // namespace portile::mhc
