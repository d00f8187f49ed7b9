#include <portile/kernels/quant/per_channel_cast.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_channel_cast::check(checker& c) const {
  check_format(c, fmt, out);
  check_channel_blocks(c, c.dim("num_tokens"), c.dim("hidden_size"), num_per_tokens);
  check_token_scales(c, x, x_sf, num_per_channels, {32, 128});
  check_scales(c, "out_sf", out_sf, flags_of(*this));
}

void per_channel_cast::infer(inference& i) const {
  i.out("out", dtype::e4m3);
  i.out("out_sf", flags_of(*this).type());
}

}  // namespace portile::quant
