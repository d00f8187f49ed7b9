#include <portile/kernels/quant/per_token_cast.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_token_cast::check(checker& c) const {
  const std::int64_t h = c.dim("hidden_size");
  check_format(c, fmt, out);
  if (out.dtype == dtype::e5m6x8) {
    if (!check_e5m6(c, h, num_per_channels)) return;
    c.need(!x_sf.defined(), "x_sf", x_sf, "must be absent: e5m6 takes no quantised x");
    c.need(!use_e4m3_sf, "use_e4m3_sf", use_e4m3_sf, "excludes e5m6");
    c.need(!stochastic_rounding, "stochastic_rounding", stochastic_rounding, "excludes e5m6");
  } else {
    check_group(c, h, num_per_channels, !x_sf.defined());
  }
  check_input_scales(c, x, x_sf, x_block_rows, x_block_cols);
  check_scales(c, "out_sf", out_sf, flags_of(*this));
}

void per_token_cast::infer(inference& i) const {
  i.out("out", dtype_of_format(fmt, out.defined() ? out.dtype : dtype::e4m3));
  infer_scales(i, "out_sf", i.dim("num_tokens"), blocks(i.dim("hidden_size"), num_per_channels),
               flags_of(*this));
}

}  // namespace portile::quant
