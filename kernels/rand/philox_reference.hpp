#pragma once
#include <portile/core/numeric/philox.hpp>
#include <portile/kernels/rand/philox.hpp>

#include "backends/reference/space.hpp"

namespace portile::rand {

template <class Space>
void compute(const Space& space, const philox& p) {
  using namespace portile::reference;
  const auto counter = make_view<std::uint32_t, 2>(p.counter);
  const auto key = make_view<std::uint32_t, 2>(p.key);
  const auto out = make_view<std::uint32_t, 2>(p.out);
  space.for_each(
      p.out.extent(0), KOKKOS_LAMBDA(std::int64_t i) {
        const auto words = numeric::philox4x32_10(
            numeric::philox_words{{counter(i, 0), counter(i, 1), counter(i, 2), counter(i, 3)}},
            numeric::philox_key{{key(i, 0), key(i, 1)}});
        for (int j = 0; j < 4; ++j) out(i, j) = words.w[j];
      });
}

}  // namespace portile::rand
