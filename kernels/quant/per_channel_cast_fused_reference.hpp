#pragma once
#include <portile/kernels/quant/channel_cast_reference.hpp>
#include <portile/kernels/quant/per_channel_cast_fused.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_channel_cast_fused& p) {
  using namespace portile::reference;
  const std::int64_t tokens = p.x.extent(0), rows = p.out.extent(0), group = p.num_per_channels.value_or(1);
  const scale_reader x_sf(p.x_sf, false);
  const auto* pos = p.pos_to_token ? static_cast<const std::int32_t*>(p.pos_to_token.data) : nullptr;
  const trap_sink trap = space.trap;
  if (pos)
    space.for_each(
        rows, KOKKOS_LAMBDA(std::int64_t r) {
          if (pos[r] >= tokens) trap.raise(0, r);
        });
  visit<float, numeric::bf16, numeric::e4m3>(p.x.dtype, [&](auto in) {
    const matrix_reader<decltype(in)> x(p.x);
    cast_channels(
        space,
        {.out = p.out,
         .out_sf = p.out_sf,
         .rows = rows,
         .cols = p.x.extent(1),
         .num_per_tokens = p.num_per_tokens,
         .flags = flags_of(p)},
        KOKKOS_LAMBDA(std::int64_t r, std::int64_t c) {
          const std::int64_t t = pos ? pos[r] : r;
          return t < 0 || t >= tokens ? 0.0f : x(t, c) * x_sf(t, c / group);
        });
  });
}

}  // namespace portile::quant
