#pragma once
#include <portile/kernels/quant/cast_back_reference.hpp>
#include <portile/kernels/quant/per_token_cast_back.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_token_cast_back& p) {
  compute(space,
          cast_back{.x = p.x, .x_sf = p.x_sf, .out = p.out, .fmt = {}, .x_block_cols = p.num_per_channels});
}

}  // namespace portile::quant
