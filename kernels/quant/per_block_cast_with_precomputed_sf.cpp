#include <portile/kernels/quant/per_block_cast_with_precomputed_sf.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::quant {

void per_block_cast_with_precomputed_sf::check(checker& c) const {
  check_format(c, fmt, out);
  check_block(c, c.dim("hidden_size"), block_rows, block_cols);
}

void per_block_cast_with_precomputed_sf::infer(inference& i) const {
  i.out("out", dtype_of_format(fmt, out.defined() ? out.dtype : dtype::e4m3));
}

}  // namespace portile::quant
