#pragma once
#include <portile/kernels/quant/block_cast_reference.hpp>
#include <portile/kernels/quant/per_block_cast_with_sf_only.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_block_cast_with_sf_only& p) {
  cast_blocks<float, numeric::bf16>(space, {.x = p.x,
                                            .out_sf = p.out_sf,
                                            .codes = dtype_of_format(p.fmt, dtype::none),
                                            .block_rows = p.block_rows,
                                            .block_cols = p.block_cols,
                                            .flags = flags_of(p)});
}

}  // namespace portile::quant
