#pragma once
#include <portile/core/numeric/ue8m0.hpp>
#include <portile/kernels/quant/batched_transpose_weight_sf.hpp>

#include "backends/reference/space.hpp"

namespace portile::quant {

template <class Space>
void compute(const Space& space, const batched_transpose_weight_sf& p) {
  using numeric::ue8m0x4;
  const std::int64_t block = p.block_size;
  const auto trap = space.trap;
  for (std::int64_t i = 0; i < p.x_sf.size; ++i) {
    const tensor& t = p.x_sf[i];
    const auto* x_sf = static_cast<const float*>(t.data);
    const std::int64_t groups = t.rank == 3 ? t.extent(0) : 1, n = t.extent(t.rank - 2),
                       k = t.extent(t.rank - 1);
    space.for_each(
        groups * n * k, KOKKOS_LAMBDA(std::int64_t at) {
          if (!numeric::is_power_of_two_scale(x_sf[at])) trap.raise(0, at);
        });

    // Both results have the memory order [group, word, line]; a line is a row of the weight, then a column.
    const auto pack = [&](const tensor& out, std::int64_t blocks, std::int64_t along,
                          std::int64_t block_stride, std::int64_t along_stride) {
      auto* words = static_cast<ue8m0x4*>(out.data);
      const std::int64_t lines = blocks * block, width = (along + 3) / 4;
      space.for_each(
          groups * width, lines, KOKKOS_LAMBDA(std::int64_t gw, std::int64_t line) {
            const std::int64_t g = gw / width, w = gw % width;
            ue8m0x4 word{0};
            for (int j = 0; j < 4 && 4 * w + j < along; ++j)
              word.set_byte(j,
                            numeric::exponent_field(
                                x_sf[g * n * k + line / block * block_stride + (4 * w + j) * along_stride]));
            words[gw * lines + line] = word;
          });
    };
    pack(p.out_sf0[i], n, k, k, 1);
    pack(p.out_sf1[i], k, n, 1, k);
  }
}

}  // namespace portile::quant
