#include <portile/kernels/quant/cast_back_e5m6.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void cast_back_e5m6::check(checker& c) const {
  check_format(c, fmt, out);
  c.need_multiple("hidden_size", c.dim("hidden_size"), 8);
  check_input_scales(c, x, x_sf, x_block_rows, x_block_cols);
}

void cast_back_e5m6::infer(inference& i) const {
  i.out("out", dtype_of_format(fmt, out.defined() ? out.dtype : dtype::bf16));
}

}  // namespace portile::quant
