#include <portile/kernels/quant/scales.hpp>
#include <portile/kernels/quant/swiglu_forward_and_per_channel_cast_and_transpose.hpp>

namespace portile::quant {

void swiglu_forward_and_per_channel_cast_and_transpose::check(checker& c) const {
  check_format(c, fmt, out);
  check_flags(c, flags_of(*this));
  check_channel_blocks(c, c.dim("num_tokens"), c.dim("hidden_size"), num_per_tokens);
  check_clamp_value(c, clamp_value);
}

void swiglu_forward_and_per_channel_cast_and_transpose::infer(inference& i) const {
  bind_hidden_size(i, *this);
  i.out("out", dtype::e4m3);
  i.out("out_sf", dtype::f32);
}

}  // namespace portile::quant
