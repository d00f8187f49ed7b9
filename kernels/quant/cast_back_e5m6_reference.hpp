#pragma once
#include <portile/kernels/quant/cast_back_e5m6.hpp>
#include <portile/kernels/quant/cast_back_reference.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const cast_back_e5m6& p) {
  compute(space, cast_back{.x = p.x,
                           .x_sf = p.x_sf,
                           .out = p.out,
                           .fmt = {},
                           .x_block_rows = p.x_block_rows,
                           .x_block_cols = p.x_block_cols});
}

}  // namespace portile::quant
