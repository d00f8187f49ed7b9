#pragma once
#include <portile/core/numeric/philox.hpp>
#include <portile/kernels/rand/seed_mix.hpp>

#include "backends/reference/space.hpp"

namespace portile::rand {

template <class Space>
void compute(const Space& space, const seed_mix& p) {
  using namespace portile::reference;
  const auto seed = make_view<std::int64_t, 1>(p.seed);
  const auto out = make_view<std::uint32_t, 1>(p.out);
  space.for_each(
      p.out.extent(0),
      KOKKOS_LAMBDA(std::int64_t i) { out(i) = numeric::seed_mix(static_cast<std::uint32_t>(seed(i))); });
}

}  // namespace portile::rand
