#include <portile/kernels/quant/scales.hpp>
#include <portile/kernels/quant/swiglu_forward_and_per_token_cast.hpp>

namespace portile::quant {

void swiglu_forward_and_per_token_cast::check(checker& c) const {
  const std::int64_t h = c.dim("hidden_size");
  check_format(c, fmt, out);
  c.need_multiple("hidden_size", h, 64);
  const bool whole_row = num_per_channels == h && num_per_channels != 32 && num_per_channels != 128;
  if (!whole_row) c.need_one_of<std::int64_t>("num_per_channels", num_per_channels, {32, 128});
  c.need(!(whole_row && use_tma_aligned_col_major_sf), "use_tma_aligned_col_major_sf",
         use_tma_aligned_col_major_sf, "needs num_per_channels 32 or 128");
  check_weights(c, *this);
  check_clamp(c, *this, true);
  check_scales(c, "out_sf", out_sf, flags_of(*this));
}

void swiglu_forward_and_per_token_cast::infer(inference& i) const {
  bind_hidden_size(i, *this);
  i.out("out", dtype::e4m3);
  infer_scales(i, "out_sf", i.dim("num_expanded_tokens"), blocks(i.dim("hidden_size"), num_per_channels),
               flags_of(*this));
}

}  // namespace portile::quant
