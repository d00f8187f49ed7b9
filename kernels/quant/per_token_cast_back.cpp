#include <portile/kernels/quant/per_token_cast_back.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_token_cast_back::check(checker& c) const {
  check_format(c, fmt, out);
  c.need_multiple("hidden_size", c.dim("hidden_size"), 64);
  c.need(num_per_channels > 0, "num_per_channels", num_per_channels, "must be positive");
}

void per_token_cast_back::infer(inference& i) const {
  i.out("out", dtype_of_format(fmt, out.defined() ? out.dtype : dtype::bf16));
}

}  // namespace portile::quant
