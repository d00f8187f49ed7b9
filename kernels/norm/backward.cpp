#include <portile/kernels/norm/backward.hpp>
#include <portile/kernels/norm/limits.hpp>

namespace portile::norm {

void backward::check(checker& c) const {
  if (!check_hidden_size(c, 32)) return;
  if (!check_type_of_x(c, "out_grad", out_grad, x) || !check_type_of_x(c, "weight", weight, x) ||
      !check_type_of_x(c, "residual_out_grad", residual_out_grad, x) ||
      !check_type_of_x(c, "x_grad", x_grad, x))
    return;
  if (!check_strides(c, "out_grad", out_grad) || !check_strides(c, "x", x) ||
      !check_strides(c, "residual_out_grad", residual_out_grad))
    return;
  c.need(weight.defined() || !weight_grad.defined(), "weight_grad", weight_grad, "needs weight");
}

void backward::infer(inference& i) const {
  i.out("x_grad", x.dtype);
  if (weight) i.out("weight_grad", weight_grad.defined() ? weight_grad.dtype : weight.dtype);
}

}  // namespace portile::norm
