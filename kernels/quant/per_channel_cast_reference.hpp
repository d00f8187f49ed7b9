#pragma once
#include <portile/kernels/quant/channel_cast_reference.hpp>
#include <portile/kernels/quant/per_channel_cast.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_channel_cast& p) {
  using namespace portile::reference;
  const scale_reader x_sf(p.x_sf, false);
  const std::int64_t group = p.num_per_channels.value_or(1);
  visit<float, numeric::bf16, numeric::e4m3>(p.x.dtype, [&](auto in) {
    const matrix_reader<decltype(in)> x(p.x);
    cast_channels(
        space,
        {.out = p.out,
         .out_sf = p.out_sf,
         .rows = p.x.extent(0),
         .cols = p.x.extent(1),
         .num_per_tokens = p.num_per_tokens,
         .flags = flags_of(p)},
        KOKKOS_LAMBDA(std::int64_t t, std::int64_t c) { return x(t, c) * x_sf(t, c / group); });
  });
}

}  // namespace portile::quant
