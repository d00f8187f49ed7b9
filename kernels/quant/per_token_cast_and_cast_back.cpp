#include <portile/kernels/quant/per_token_cast_and_cast_back.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_token_cast_and_cast_back::check(checker& c) const {
  if (!check_group(c, c.dim("hidden_size"), num_per_channels, false)) return;
  c.need_multiple("hidden_size", c.dim("hidden_size"), num_per_channels);
  check_flags(c, flags_of(*this));
}

void per_token_cast_and_cast_back::infer(inference& i) const {
  i.out("x", x.defined() ? x.dtype : dtype::bf16);
}

}  // namespace portile::quant
