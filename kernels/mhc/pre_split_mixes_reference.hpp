#pragma once
#include <portile/kernels/mhc/pre_split_mixes.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const pre_split_mixes& p) {
  using namespace portile::reference;
  const std::int64_t mult = p.pre_mix.extent(1);
  const auto x = make_view<float, 2>(p.x);
  const mix_affine affine{make_view<float, 1>(p.scale), make_view<float, 1>(p.base), mult};
  const auto pre_mix = make_view<float, 2>(p.pre_mix), post_mix = make_view<float, 2>(p.post_mix);
  const auto comb_mix = make_view<float, 3>(p.comb_mix);
  const float post_mult_value = static_cast<float>(p.post_mult_value),
              pre_eps = static_cast<float>(p.pre_eps);

  space.for_each(
      p.x.extent(0), mult, KOKKOS_LAMBDA(std::int64_t t, std::int64_t i) {
        pre_mix(t, i) = split_pre_mix(affine, x(t, i), i, pre_eps);
        post_mix(t, i) = split_post_mix(affine, x(t, mult + i), i, post_mult_value);
        for (std::int64_t o = 0; o < mult; ++o) {
          const std::int64_t j = (2 + i) * mult + o;
          comb_mix(t, i, o) = affine(x(t, j), j);
        }
      });
}

}  // namespace portile::mhc
