#include <portile/kernels/mhc/pre_norm_fn_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void pre_norm_fn_backward::check(checker& c) const {
  check_small_mult(c);
  check_hidden(c);
  c.need(norm_weight.defined() || !norm_weight_grad.defined(), "norm_weight_grad", norm_weight_grad,
         "must be absent: norm_weight is");
}

void pre_norm_fn_backward::infer(inference& i) const {
  i.out("residual_grad", dtype::bf16);
  i.out("fn_grad", dtype::f32);
  if (norm_weight.defined()) i.out("norm_weight_grad", dtype::f32);
}

}  // namespace portile::mhc
