#pragma once
#include <portile/kernels/quant/channel_cast_reference.hpp>
#include <portile/kernels/quant/per_channel_cast_and_transpose.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_channel_cast_and_transpose& p) {
  using namespace portile::reference;
  visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
    const matrix_reader<decltype(in)> x(p.x);
    cast_channels(space,
                  {.out = p.out,
                   .out_sf = p.out_sf,
                   .rows = p.x.extent(0),
                   .cols = p.x.extent(1),
                   .num_per_tokens = p.num_per_tokens,
                   .transposed = true,
                   .flags = flags_of(p)},
                  x);
  });
}

}  // namespace portile::quant
