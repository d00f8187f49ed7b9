#pragma once
#include <portile/kernels/quant/per_token_cast_and_cast_back.hpp>

#include "backends/reference/scales.hpp"

namespace portile::quant {

template <class Space>
void compute(const Space& space, const per_token_cast_and_cast_back& p) {
  using namespace portile::reference;
  const std::int64_t rows = p.x.extent(0), cols = p.x.extent(1), group = p.num_per_channels;
  const bool e2m1 = p.fmt == "e2m1";
  const scale_rule rule(e2m1 ? dtype::e2m1x2 : dtype::e4m3, flags_of(p));
  visit<float, numeric::bf16>(p.x.dtype, [&](auto value) {
    const matrix_reader<decltype(value)> x(p.x);
    const matrix_writer<decltype(value)> out(p.x);
    space.for_each(
        rows, cols / group, KOKKOS_LAMBDA(std::int64_t t, std::int64_t g) {
          const block b = block::at(t, g, 1, group, rows, cols);
          const numeric::scale s = rule(b.amax(x));
          b.for_each([&](std::int64_t r, std::int64_t c) {
            const float scaled = x(r, c) * s.sf_inv;
            const float code = e2m1 ? numeric::e2m1_to_float(numeric::to_e2m1(scaled))
                                    : numeric::to_float(numeric::to_e4m3(scaled));
            out(r, c, code * s.sf);
          });
        });
  });
}

}  // namespace portile::quant
