#include <portile/kernels/quant/per_token_cast.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_token_cast::check(checker& c) const {
  const std::int64_t h = c.dim("hidden_size");
  check_format(c, fmt, out);
  c.need_multiple("hidden_size", h, 64);
  const bool whole_row = num_per_channels == h && !x_sf.defined();
  if (!whole_row) c.need_one_of<std::int64_t>("num_per_channels", num_per_channels, {16, 32, 64, 128});
  check_input_scales(c, x, x_sf, x_block_rows, x_block_cols);
  check_scales(c, "out_sf", out_sf, flags_of(*this));
}

void per_token_cast::infer(inference& i) const {
  i.out("out", dtype_of_format(fmt, out.defined() ? out.dtype : dtype::e4m3));
  infer_scales(i, "out_sf", i.dim("num_tokens"), num_per_channels > 0 ? numeric::ceil_div(i.dim("hidden_size"), num_per_channels) : 0,
               flags_of(*this));
}

}  // namespace portile::quant
