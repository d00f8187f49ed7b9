#pragma once
#include <portile/kernels/engram/sinkhorn_col_update.hpp>

#include "backends/reference/engram.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const sinkhorn_col_update& p) {
  using namespace portile::reference;
  const auto partial = make_view<float, 2>(p.col_sumsq_partial);
  const auto col_scale = make_view<float, 1>(p.col_scale);
  const optional_view<float, 1> col_sumsq(p.col_sumsq);
  const float ratio = static_cast<float>(p.ratio), eps = static_cast<float>(p.eps);
  space.for_each(
      p.col_scale.extent(0), KOKKOS_LAMBDA(std::int64_t d) {
        const float sum = sum_partials(partial, d), scaled = sum * ratio;
        if (scaled != 0) col_scale(d) /= ::sqrtf(scaled) + eps;
        col_sumsq.set(sum, d);
      });
}

}  // namespace portile::engram
