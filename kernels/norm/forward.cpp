#include <portile/kernels/norm/forward.hpp>
#include <portile/kernels/norm/limits.hpp>

namespace portile::norm {

void forward::check(checker& c) const {
  if (check_hidden_size(c, 16) && check_forward_inputs(c, *this)) check_type_of_x(c, "out", out, x);
}

void forward::infer(inference& i) const {
  i.out("out", x.dtype);
  if (residual) i.out("residual_out", x.dtype);
  if (with_rstd) i.out("rstd", dtype::f32);
}

}  // namespace portile::norm
