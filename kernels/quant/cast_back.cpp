#include <portile/kernels/quant/cast_back.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void cast_back::check(checker& c) const {
  check_format(c, fmt, out);
  c.need_multiple("hidden_size", c.dim("hidden_size"), x.dtype == dtype::e5m6x8 ? 8 : 64);
  check_input_scales(c, x, x_sf, x_block_rows, x_block_cols);
  c.need(!(use_tma_aligned_col_major_sf && x_block_cols == 1), "use_tma_aligned_col_major_sf",
         use_tma_aligned_col_major_sf, "must be false for blocks one column wide");
  // An exponent byte is a power of two by itself, and e4m3 scales are known by their dtype.
  check_scales(c, "x_sf", x_sf,
               {.col_major = use_tma_aligned_col_major_sf,
                .round = use_packed_ue8m0,
                .packed = use_packed_ue8m0,
                .e4m3 = x_sf.dtype == dtype::e4m3 && !use_packed_ue8m0});
}

void cast_back::infer(inference& i) const {
  i.out("out", dtype_of_format(fmt, out.defined() ? out.dtype : dtype::bf16));
}

}  // namespace portile::quant
