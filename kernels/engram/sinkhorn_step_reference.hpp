#pragma once
#include <portile/kernels/engram/sinkhorn_step.hpp>

#include "backends/reference/engram.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const sinkhorn_step& p) {
  using namespace portile::reference;
  const std::int64_t rows = p.matrix.extent(0);
  const scaled_matrix y(p.matrix, p.row_scale, p.col_scale);
  const auto row_scale = make_view<float, 1>(p.row_scale), row_norm = make_view<float, 1>(p.row_norm);
  const auto col_sumsq = make_view<float, 1>(p.col_sumsq);
  const float eps = static_cast<float>(p.eps);

  space.for_each(
      rows, KOKKOS_LAMBDA(std::int64_t n) { row_norm(n) = y.norm(n); });
  space.for_each(
      p.matrix.extent(1), KOKKOS_LAMBDA(std::int64_t d) {
        double sum = 0;
        for (std::int64_t n = 0; n < rows; ++n) {
          if (row_norm(n) == 0) continue;
          const double z = y(n, d) * (1.0f / (row_norm(n) + eps));
          sum += z * z;
        }
        col_sumsq(d) = static_cast<float>(sum);
      });
  space.for_each(
      rows, KOKKOS_LAMBDA(std::int64_t n) {
        if (row_norm(n) != 0) row_scale(n) *= 1.0f / (row_norm(n) + eps);
      });
}

}  // namespace portile::engram
