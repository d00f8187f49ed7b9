#pragma once
#include <portile/kernels/engram/sinkhorn_finalize.hpp>

#include "backends/reference/engram.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const sinkhorn_finalize& p) {
  using namespace portile::reference;
  const std::int64_t width = p.out.extent(1);
  const scaled_matrix y(p.matrix, p.row_scale, p.col_scale);
  const auto out = make_view<float, 2>(p.out);
  const float eps = static_cast<float>(p.eps), alpha = static_cast<float>(p.alpha);
  space.for_each(
      p.out.extent(0), KOKKOS_LAMBDA(std::int64_t n) {
        const float norm = y.norm(n), factor = norm == 0 ? 0.0f : alpha / (norm + eps);
        for (std::int64_t d = 0; d < width; ++d) out(n, d) = y(n, d) * factor;
      });
}

}  // namespace portile::engram
