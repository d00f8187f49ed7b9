#pragma once
// What the steps of the Engram-Sinkhorn optimiser share.
#include "backends/reference/optional.hpp"

namespace portile::reference {

/// y(n, d) = (row_scale[n] * M[n, d]) * col_scale[d].
struct scaled_matrix {
  view<float, 2> matrix;
  view<float, 1> row_scale, col_scale;

  scaled_matrix(const tensor& m, const tensor& rows, const tensor& cols)
      : matrix(make_view<float, 2>(m)),
        row_scale(make_view<float, 1>(rows)),
        col_scale(make_view<float, 1>(cols)) {}
  KOKKOS_FUNCTION float operator()(std::int64_t n, std::int64_t d) const {
    return row_scale(n) * matrix(n, d) * col_scale(d);
  }
  /// Norm of row n: summed in double, so that neither the order nor tiny values matter.
  KOKKOS_FUNCTION float norm(std::int64_t n) const {
    double sum = 0;
    for (std::int64_t d = 0; d < static_cast<std::int64_t>(matrix.extent(1)); ++d) {
      const double v = (*this)(n, d);
      sum += v * v;
    }
    return static_cast<float>(::sqrt(sum));
  }
};

/// Sum over the partial rows of column d, rounded once.
KOKKOS_INLINE_FUNCTION float sum_partials(const view<float, 2>& partial, std::int64_t d) {
  double sum = 0;
  for (std::int64_t n = 0; n < static_cast<std::int64_t>(partial.extent(0)); ++n) sum += partial(n, d);
  return static_cast<float>(sum);
}

}  // namespace portile::reference
