#include <portile/kernels/quant/per_block_cast_with_sf_only.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_block_cast_with_sf_only::check(checker& c) const {
  check_block(c, c.dim("hidden_size"), block_rows, block_cols);
  check_scales(c, "out_sf", out_sf, flags_of(*this));
}

void per_block_cast_with_sf_only::infer(inference& i) const {
  infer_scales(i, "out_sf", blocks(i.dim("num_tokens"), block_rows), blocks(i.dim("hidden_size"), block_cols),
               flags_of(*this));
}

}  // namespace portile::quant
