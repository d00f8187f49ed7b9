#pragma once
#include <portile/kernels/engram/fused_weight.hpp>

#include "backends/reference/space.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const fused_weight& p) {
  using namespace portile::reference;
  const auto hidden = make_view<numeric::bf16, 2>(p.weight_hidden);
  const auto embed = make_view<numeric::bf16, 2>(p.weight_embed);
  const auto fused = make_view<float, 2>(p.weight_fused);
  space.for_each(
      p.weight_fused.extent(0), p.weight_fused.extent(1), KOKKOS_LAMBDA(std::int64_t i, std::int64_t d) {
        fused(i, d) = load(hidden(i, d)) * load(embed(i, d));
      });
}

}  // namespace portile::engram
