#include <portile/kernels/quant/scales.hpp>
#include <portile/kernels/quant/swiglu_backward.hpp>

namespace portile::quant {

void swiglu_backward::check(checker& c) const {
  check_format(c, fmt, x_grad);
  c.need_multiple("hidden_size", c.dim("hidden_size"), 64);
  c.need(out_grad.dtype == x.dtype, "out_grad.dtype", out_grad.dtype,
         "must be that of x, " + std::string(to_string(x.dtype)));
  c.need(!act_out || act_out.dtype == x_grad.dtype, "act_out.dtype", act_out.dtype,
         "must be that of x_grad, " + std::string(to_string(x_grad.dtype)));
  check_weights(c, *this);
  check_weights_grad(c, *this);
  check_clamp_value(c, clamp_value);
}

void swiglu_backward::infer(inference& i) const {
  bind_hidden_size(i, *this);
  const dtype type = dtype_of_format(fmt, x_grad ? x_grad.dtype : x ? x.dtype : dtype::bf16);
  i.out("x_grad", type);
  if (topk_weights) i.out("topk_weights_grad", dtype::f32);
  if (act_out) i.out("act_out", type);
}

}  // namespace portile::quant
