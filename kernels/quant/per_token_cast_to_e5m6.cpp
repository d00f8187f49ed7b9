#include <portile/kernels/quant/per_token_cast_to_e5m6.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_token_cast_to_e5m6::check(checker& c) const {
  check_format(c, fmt, out);
  const std::int64_t h = c.dim("hidden_size");
  check_e5m6(c, h, num_per_channels == 0 ? h : num_per_channels);
  check_scales(c, "out_sf", out_sf, flags_of(*this));
}

void per_token_cast_to_e5m6::infer(inference& i) const {
  i.out("out", dtype::e5m6x8);
  infer_scales(i, "out_sf", i.dim("num_tokens"), 1, flags_of(*this));
}

}  // namespace portile::quant
