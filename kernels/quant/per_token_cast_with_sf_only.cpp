#include <portile/kernels/quant/per_token_cast_with_sf_only.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_token_cast_with_sf_only::check(checker& c) const {
  check_group(c, c.dim("hidden_size"), num_per_channels, false);
  check_scales(c, "out_sf", out_sf, flags_of(*this));
}

void per_token_cast_with_sf_only::infer(inference& i) const {
  infer_scales(i, "out_sf", i.dim("num_tokens"), blocks(i.dim("hidden_size"), num_per_channels),
               flags_of(*this));
}

}  // namespace portile::quant
