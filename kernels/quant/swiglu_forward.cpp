#include <portile/kernels/quant/scales.hpp>
#include <portile/kernels/quant/swiglu_forward.hpp>

namespace portile::quant {

void swiglu_forward::check(checker& c) const {
  check_format(c, fmt, out);
  c.need_multiple("hidden_size", c.dim("hidden_size"), 64);
  check_weights(c, *this);
  check_clamp(c, *this, false);
}

void swiglu_forward::infer(inference& i) const {
  bind_hidden_size(i, *this);
  i.out("out", dtype_of_format(fmt, out.defined() ? out.dtype : dtype::bf16));
}

}  // namespace portile::quant
