#pragma once
#include <portile/kernels/quant/channel_cast_reference.hpp>
#include <portile/kernels/quant/swiglu_forward_and_per_channel_cast_and_transpose.hpp>

#include "backends/reference/swiglu.hpp"

namespace portile::quant {

template <class Space>
void compute(const Space& space, const swiglu_forward_and_per_channel_cast_and_transpose& p) {
  using namespace portile::reference;
  const std::int64_t hidden = p.out_sf.extent(1);
  visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
    const swiglu_activation<decltype(in)> act{matrix_reader<decltype(in)>(p.x), hidden,
                                              swiglu_clamp(p.clamp_value)};
    cast_channels(
        space,
        {.out = p.out,
         .out_sf = p.out_sf,
         .rows = p.x.extent(0),
         .cols = hidden,
         .num_per_tokens = p.num_per_tokens,
         .transposed = !p.without_transpose,
         .flags = flags_of(p)},
        KOKKOS_LAMBDA(std::int64_t t, std::int64_t j) {
          return numeric::to_float(numeric::to_bf16(act(t, j)));
        });
  });
}

}  // namespace portile::quant
