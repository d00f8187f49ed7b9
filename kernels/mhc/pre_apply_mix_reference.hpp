#pragma once
#include <portile/kernels/mhc/pre_apply_mix.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const pre_apply_mix& p) {
  using namespace portile::reference;
  const std::int64_t mult = p.x.extent(1), hidden = p.x.extent(2);
  const auto x = make_view<numeric::bf16, 3>(p.x);
  const auto mix = make_view<float, 2>(p.mix);
  const auto out = make_view<numeric::bf16, 2>(p.out);
  space.for_each(
      p.x.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        for (std::int64_t h = 0; h < hidden; ++h)
          store(out(t, h), apply_mix(
                               mult, [&](std::int64_t i) { return mix(t, i); },
                               [&](std::int64_t i) { return load(x(t, i, h)); }));
      });
}

}  // namespace portile::mhc
