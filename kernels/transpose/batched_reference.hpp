#pragma once
#include <portile/kernels/transpose/batched.hpp>

#include "backends/reference/space.hpp"

namespace portile::transpose {

template <class Space>
void compute(const Space& space, const batched& p) {
  using namespace portile::reference;
  const auto move = [&](auto element) {
    const auto x = make_view<const decltype(element), 3>(p.x);
    const auto out = make_view<decltype(element), 3>(p.out);
    const std::int64_t rows = p.x.extent(1);
    space.for_each(
        p.x.extent(0) * rows, p.x.extent(2), KOKKOS_LAMBDA(std::int64_t bi, std::int64_t j) {
          out(bi / rows, j, bi % rows) = x(bi / rows, bi % rows, j);
        });
  };
  switch (size_of(p.x.dtype)) {
    case 1:
      move(std::uint8_t{});
      break;
    case 2:
      move(std::uint16_t{});
      break;
    default:
      move(std::uint32_t{});
      break;
  }
}

}  // namespace portile::transpose
