#pragma once
#include <portile/kernels/mhc/expand.hpp>

#include "backends/reference/space.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const expand& p) {
  using namespace portile::reference;
  const std::int64_t hidden = p.out.extent(2);
  const auto x = make_view<numeric::bf16, 2>(p.x);
  const auto out = make_view<numeric::bf16, 3>(p.out);
  space.for_each(
      p.out.extent(0), p.out.extent(1), KOKKOS_LAMBDA(std::int64_t t, std::int64_t i) {
        for (std::int64_t h = 0; h < hidden; ++h) out(t, i, h) = x(t, h);
      });
}

}  // namespace portile::mhc
