#pragma once
#include <portile/kernels/quant/swiglu_forward.hpp>

#include "backends/reference/swiglu.hpp"

namespace portile::quant {

template <class Space>
void compute(const Space& space, const swiglu_forward& p) {
  using namespace portile::reference;
  const std::int64_t rows = p.out.extent(0), hidden = p.out.extent(1);
  const row_owner owns(p);
  const row_weight weight(p);
  const trap_sink trap = space.trap;
  owns.check(space, rows);
  visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
    const swiglu_activation<decltype(in)> act{matrix_reader<decltype(in)>(p.x), hidden,
                                              swiglu_clamp(p.clamp_value)};
    count_clamped(space, act, owns, rows, p.clamped_count);
    visit<float, numeric::bf16>(p.out.dtype, [&](auto value) {
      const matrix_writer<decltype(value)> out(p.out);
      space.for_each(
          rows, KOKKOS_LAMBDA(std::int64_t t) {
            if (!owns(t)) return;
            const float w = weight(t, trap);
            for (std::int64_t j = 0; j < hidden; ++j) out(t, j, act(t, j) * w);
          });
    });
  });
}

}  // namespace portile::quant
