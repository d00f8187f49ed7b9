#pragma once
#include <portile/kernels/mhc/post.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const post& p) {
  using namespace portile::reference;
  const std::int64_t mult = p.out.extent(1), hidden = p.out.extent(2);
  const auto x = make_view<numeric::bf16, 2>(p.x);
  const auto residual = make_view<numeric::bf16, 3>(p.residual), out = make_view<numeric::bf16, 3>(p.out);
  const auto post_mix = make_view<float, 2>(p.post_mix);
  const auto comb_mix = make_view<float, 3>(p.comb_mix);
  space.for_each(
      p.out.extent(0), mult, KOKKOS_LAMBDA(std::int64_t t, std::int64_t o) {
        for (std::int64_t h = 0; h < hidden; ++h)
          store(out(t, o, h),
                post_mix_add(
                    mult, post_mix(t, o), load(x(t, h)), [&](std::int64_t i) { return comb_mix(t, i, o); },
                    [&](std::int64_t i) { return load(residual(t, i, h)); }));
      });
}

}  // namespace portile::mhc
