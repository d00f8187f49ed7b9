#include <bit>

#include <portile/kernels/quant/per_block_cast_lossless.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_block_cast_lossless::check(checker& c) const {
  const auto power_of_two = [&](const char* name, std::int64_t v) {
    return c.need(v > 0 && std::has_single_bit(static_cast<std::uint64_t>(v)), name, v,
                  "must be a power of two");
  };
  check_format(c, fmt, out);
  c.need_multiple("hidden_size", c.dim("hidden_size"), 32);
  if (!check_input_scales(c, x, x_sf, x_block_rows, x_block_cols) ||
      !power_of_two("x_block_cols", x_block_cols) || !power_of_two("out_block_cols", out_block_cols) ||
      !c.need(out_block_rows > 0, "out_block_rows", out_block_rows, "must be positive"))
    return;
  c.need_multiple("out_block_rows", out_block_rows, x_block_rows);
  c.need_multiple("out_block_cols", out_block_cols, x_block_cols);
  c.need(!use_packed_ue8m0 || use_tma_aligned_col_major_sf, "use_packed_ue8m0", use_packed_ue8m0,
         "needs use_tma_aligned_col_major_sf");
  c.need(!use_packed_ue8m0 || out_block_cols > 1, "use_packed_ue8m0", use_packed_ue8m0,
         "needs blocks more than one column wide");
  check_scales(c, "out_sf", out_sf, flags_of(*this));
}

void per_block_cast_lossless::infer(inference& i) const {
  i.out("out", dtype::e4m3);
  infer_scales(i, "out_sf", blocks(i.dim("num_tokens"), out_block_rows),
               blocks(i.dim("hidden_size"), out_block_cols), flags_of(*this));
}

}  // namespace portile::quant
