#include <portile/core/aliasing.hpp>
#include <portile/kernels/mhc/post_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void post_backward::check(checker& c) const {
  check_mult(c);
  check_hidden(c);
  c.need(!same_buffer(residual_grad, out_grad), "residual_grad.data", residual_grad,
         "must not be the buffer of out_grad");
}

void post_backward::infer(inference& i) const {
  i.out("x_grad", dtype::bf16);
  i.out("residual_grad", dtype::bf16);
  i.out("post_mix_grad", dtype::f32);
  i.out("comb_mix_grad", dtype::f32);
}

}  // namespace portile::mhc
