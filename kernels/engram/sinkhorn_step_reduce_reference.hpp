#pragma once
#include <portile/kernels/engram/sinkhorn_step_reduce.hpp>

#include "backends/reference/engram.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const sinkhorn_step_reduce& p) {
  using namespace portile::reference;
  const auto partial = make_view<float, 2>(p.col_sumsq_partial);
  const auto col_sumsq = make_view<float, 1>(p.col_sumsq);
  space.for_each(
      p.col_sumsq.extent(0), KOKKOS_LAMBDA(std::int64_t d) { col_sumsq(d) = sum_partials(partial, d); });
}

}  // namespace portile::engram
