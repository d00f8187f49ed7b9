#pragma once
#include <portile/kernels/quant/block_cast_reference.hpp>
#include <portile/kernels/quant/per_token_cast_with_precomputed_sf.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_token_cast_with_precomputed_sf& p) {
  cast_blocks<float, numeric::bf16>(space, {.x = p.x,
                                            .out = p.out,
                                            .out_sf = p.out_sf,
                                            .codes = p.out.dtype,
                                            .given_sf = true,
                                            .block_cols = p.num_per_channels});
}

}  // namespace portile::quant
