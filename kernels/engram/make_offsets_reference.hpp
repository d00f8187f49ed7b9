#pragma once
#include <portile/kernels/engram/make_offsets.hpp>

#include "backends/reference/space.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const make_offsets& p) {
  using namespace portile::reference;
  const std::int64_t sizes = p.vocab_sizes.extent(1), tables = p.vocab_sizes.extent(2),
                     columns = sizes * tables;
  const auto vocab = make_view<std::int32_t, 3>(p.vocab_sizes);
  const auto offsets = make_view<std::int32_t, 2>(p.offsets);
  const trap_sink trap = space.trap;
  space.for_each(
      p.offsets.extent(0), KOKKOS_LAMBDA(std::int64_t l) {
        const std::int64_t top = 2147483647, bottom = -top - 1;
        std::int64_t sum = 0;
        for (std::int64_t column = 0; column < columns; ++column) {
          if (sum > top || sum < bottom) trap.raise(0, l * columns + column);
          offsets(l, column) = static_cast<std::int32_t>(sum > top ? top : sum < bottom ? bottom : sum);
          sum += vocab(l, column / tables, column % tables);
        }
      });
}

}  // namespace portile::engram
