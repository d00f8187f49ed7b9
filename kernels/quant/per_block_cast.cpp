#include <portile/kernels/quant/per_block_cast.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_block_cast::check(checker& c) const {
  check_format(c, fmt, out);
  check_block(c, c.dim("hidden_size"), block_rows, block_cols);
  check_scales(c, "out_sf", out_sf, flags_of(*this));
}

void per_block_cast::infer(inference& i) const {
  i.out("out", dtype_of_format(fmt, out.defined() ? out.dtype : dtype::e4m3));
  infer_scales(i, "out_sf", blocks(i.dim("num_tokens"), block_rows), blocks(i.dim("hidden_size"), block_cols),
               flags_of(*this));
}

}  // namespace portile::quant
