#include <portile/kernels/quant/cast.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void cast::check(checker& c) const {
  check_format(c, fmt, out);
  if (!check_same_shape(c, x, out)) return;
  if (!stochastic_rounding) return;
  c.need(x.dtype == dtype::f32 || (x.dtype == dtype::bf16 && out.dtype == dtype::e4m3), "x.dtype", x.dtype,
         "with stochastic_rounding it must be wider than out");
  c.need(out.dtype != dtype::f32, "out.dtype", out.dtype, "with stochastic_rounding it must be bf16 or e4m3");
  c.need_multiple("x.numel", x.numel(), 4);
}

void cast::infer(inference& i) const {
  const dtype type = dtype_of_format(fmt, out.defined() ? out.dtype : dtype::e4m3);
  if (x.defined())
    infer_same_shape(i, "out", type, x);
  else
    i.out("out", type);
}

}  // namespace portile::quant
