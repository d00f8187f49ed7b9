#pragma once
#include <portile/kernels/quant/block_cast_reference.hpp>
#include <portile/kernels/quant/per_token_cast_to_e5m6.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_token_cast_to_e5m6& p) {
  cast_blocks<float, numeric::bf16>(space, {.x = p.x,
                                            .out = p.out,
                                            .out_sf = p.out_sf,
                                            .codes = p.out.dtype,
                                            .block_cols = p.x.extent(1),
                                            .flags = flags_of(p)});
}

}  // namespace portile::quant
