#pragma once
#include <portile/kernels/quant/block_cast_reference.hpp>
#include <portile/kernels/quant/per_token_cast.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_token_cast& p) {
  cast_blocks<float, numeric::bf16, numeric::e4m3, numeric::e2m1x2>(
      space, {.x = p.x,
              .x_sf = p.x_sf,
              .x_block_rows = p.x_block_rows,
              .x_block_cols = p.x_block_cols,
              .out = p.out,
              .out_sf = p.out_sf,
              .codes = p.out.dtype,
              .block_cols = p.num_per_channels,
              .flags = flags_of(p),
              .stochastic_rounding = p.stochastic_rounding});
}

}  // namespace portile::quant
