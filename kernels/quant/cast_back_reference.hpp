#pragma once
#include <portile/kernels/quant/cast_back.hpp>

#include "backends/reference/scales.hpp"

namespace portile::quant {

/// Fields alone count: the flags have been checked.
template <class Space>
void compute(const Space& space, const cast_back& p) {
  using namespace portile::reference;
  const std::int64_t cols = p.out.extent(1), block_rows = p.x_block_rows, block_cols = p.x_block_cols;
  const scale_reader x_sf(p.x_sf, block_cols == 1);
  visit<numeric::e4m3, numeric::e2m1x2, numeric::e5m6x8>(p.x.dtype, [&](auto in) {
    visit<float, numeric::bf16>(p.out.dtype, [&](auto value) {
      const matrix_reader<decltype(in)> x(p.x);
      const matrix_writer<decltype(value)> out(p.out);
      space.for_each(
          p.out.extent(0), cols, KOKKOS_LAMBDA(std::int64_t t, std::int64_t j) {
            out(t, j, x(t, j) * x_sf(t / block_rows, j / block_cols));
          });
    });
  });
}

}  // namespace portile::quant
