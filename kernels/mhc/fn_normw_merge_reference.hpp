#pragma once
#include <portile/kernels/mhc/fn_normw_merge.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const fn_normw_merge& p) {
  using namespace portile::reference;
  const auto fn = make_view<float, 2>(p.fn), out = make_view<float, 2>(p.out);
  const auto norm_weight = make_view<float, 1>(p.norm_weight);
  space.for_each(
      p.fn.extent(0), p.fn.extent(1),
      KOKKOS_LAMBDA(std::int64_t j, std::int64_t k) { out(j, k) = fn(j, k) * norm_weight(k); });
}

}  // namespace portile::mhc
