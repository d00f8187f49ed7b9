#pragma once
#include <portile/kernels/engram/gather.hpp>

#include "backends/reference/space.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const gather& p) {
  using namespace portile::reference;
  const std::int64_t rows = p.table.extent(0), width = p.table.extent(1), columns = p.index.extent(1);
  const auto table = make_view<numeric::bf16, 2>(p.table);
  const auto index = make_view<std::int32_t, 2>(p.index);
  const auto out = make_view<numeric::bf16, 2>(p.out);
  const trap_sink trap = space.trap;

  space.for_each(
      p.index.extent(0), columns, KOKKOS_LAMBDA(std::int64_t t, std::int64_t c) {
        const std::int64_t row = index(t, c);
        const bool found = row >= 0 && row < rows;
        if (!found && row != -1) trap.raise(0, t * columns + c);
        for (std::int64_t j = 0; j < width; ++j)
          out(t, c * width + j) = found ? table(row, j) : numeric::bf16{0};
      });
}

}  // namespace portile::engram
