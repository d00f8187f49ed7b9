#pragma once
#include <portile/kernels/quant/block_cast_reference.hpp>
#include <portile/kernels/quant/per_block_cast.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_block_cast& p) {
  cast_blocks<float, numeric::bf16>(space, {.x = p.x,
                                            .out = p.out,
                                            .out_sf = p.out_sf,
                                            .codes = p.out.dtype,
                                            .block_rows = p.block_rows,
                                            .block_cols = p.block_cols,
                                            .flags = flags_of(p)});
}

}  // namespace portile::quant
