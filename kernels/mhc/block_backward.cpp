#include <portile/core/aliasing.hpp>
#include <portile/kernels/mhc/block_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void block_backward::check(checker& c) const {
  check_small_mult(c);
  check_hidden(c);
  const char* rule = head ? "must be absent with head" : "is required without head";
  c.need(comb_mix.defined() != head, "comb_mix", comb_mix, rule);
  c.need(out_grad.defined() != head, "out_grad", out_grad, rule);
  c.need(norm_weight.defined() || !norm_weight_grad.defined(), "norm_weight_grad", norm_weight_grad,
         "must be absent: norm_weight is");
  c.need(!same_buffer(residual_grad, out_grad) && !same_buffer(residual_grad, residual), "residual_grad.data",
         residual_grad, "must not be the buffer of out_grad or residual");
}

void block_backward::infer(inference& i) const {
  i.out("residual_grad", dtype::bf16);
  i.out("fn_grad", dtype::f32);
  if (norm_weight.defined()) i.out("norm_weight_grad", dtype::f32);
}

}  // namespace portile::mhc
