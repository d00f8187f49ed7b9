#include <portile/kernels/quant/per_channel_cast_fused.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_channel_cast_fused::check(checker& c) const {
  check_format(c, fmt, out);
  check_flags(c, flags_of(*this));
  const std::int64_t rows = c.dim("num_expanded_tokens");
  if (pos_to_token) {
    c.need_multiple("num_expanded_tokens", rows, 16);
  } else {
    c.need(rows == x.extent(0), "out.extents[0]", rows,
           "must be num_tokens = " + std::to_string(x.extent(0)) + " without pos_to_token");
    c.need_multiple("num_tokens", rows, 128);
  }
  c.need_multiple("hidden_size", c.dim("hidden_size"), x_sf ? 128 : 64);
  c.need_one_of<std::int64_t>("num_per_tokens", num_per_tokens, {128});
  check_token_scales(c, x, x_sf, num_per_channels, {128});
}

void per_channel_cast_fused::infer(inference& i) const {
  if (!pos_to_token) i.bind("num_expanded_tokens", i.dim("num_tokens"));
  i.out("out", dtype::e4m3);
  i.out("out_sf", dtype::f32);
}

}  // namespace portile::quant
