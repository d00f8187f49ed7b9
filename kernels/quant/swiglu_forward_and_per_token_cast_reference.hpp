#pragma once
#include <portile/kernels/quant/swiglu_forward_and_per_token_cast.hpp>

#include "backends/reference/swiglu.hpp"

namespace portile::quant {

template <class Space>
void compute(const Space& space, const swiglu_forward_and_per_token_cast& p) {
  using namespace portile::reference;
  const std::int64_t rows = p.out.extent(0), hidden = p.out.extent(1), group = p.num_per_channels;
  const row_owner owns(p);
  const row_weight weight(p);
  const matrix_writer<numeric::e4m3> out(p.out);
  const scale_writer out_sf(p.out_sf, false);
  const scale_rule rule(p.out.dtype, flags_of(p));
  const trap_sink trap = space.trap;
  owns.check(space, rows);

  visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
    const swiglu_activation<decltype(in)> act{matrix_reader<decltype(in)>(p.x), hidden,
                                              swiglu_clamp(p.clamp_value)};
    count_clamped(space, act, owns, rows, p.clamped_count);
    space.for_each(
        rows, KOKKOS_LAMBDA(std::int64_t t) {
          if (!owns(t)) return;
          const float w = weight(t, trap);
          const auto value = [&](std::int64_t r, std::int64_t j) { return act(r, j) * w; };
          for (std::int64_t g = 0; g * group < hidden; ++g) {
            const block b = block::at(t, g, 1, group, rows, hidden);
            const numeric::scale s = rule(b.amax(value));
            out_sf(t, g, s);
            b.for_each([&](std::int64_t r, std::int64_t j) { out(r, j, value(r, j) * s.sf_inv); });
          }
        });
  });
}

}  // namespace portile::quant
