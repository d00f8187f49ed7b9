#pragma once
#include <portile/kernels/norm/backward.hpp>

#include "backends/reference/norm.hpp"
#include "backends/reference/sums.hpp"

namespace portile::norm {

template <class Space>
void compute(const Space& space, const backward& p) {
  using namespace portile::reference;
  const std::int64_t rows = p.x.extent(0), hidden = p.x.extent(1);
  const auto* rstd = static_cast<const float*>(p.rstd.data);
  const float out_scale = static_cast<float>(p.out_scale);
  const bool accumulate = p.accumulate;

  visit<float, numeric::bf16>(p.x.dtype, [&](auto type) {
    using T = decltype(type);
    const batched_rows<T> out_grad(p.out_grad), x(p.x), residual_out_grad(p.residual_out_grad),
        x_grad(p.x_grad);
    const auto* weight = optional_data<T>(p.weight);
    // First the weight's: x_grad may be the memory of out_grad.
    if (p.weight_grad && !(accumulate && rows == 0)) {
      visit<float, numeric::bf16>(p.weight_grad.dtype, [&](auto grad) {
        auto* weight_grad = static_cast<decltype(grad)*>(p.weight_grad.data);
        space.for_each(
            hidden, KOKKOS_LAMBDA(std::int64_t j) {
              double sum = accumulate ? load(weight_grad[j]) : 0.0f;
              for (std::int64_t row = 0; row < rows; ++row)
                sum += static_cast<double>(load(x(row, j)) * rstd[row]) *
                       static_cast<double>(load(out_grad(row, j)) * out_scale);
              store_sum(weight_grad[j], sum);
            });
      });
    }
    space.for_each(
        rows, KOKKOS_LAMBDA(std::int64_t row) {
          const float r = rstd[row];
          const auto big_d = [&](std::int64_t j) {
            const float d = load(out_grad(row, j)) * out_scale;
            return weight ? d * load(weight[j]) : d;
          };
          double sum = 0;
          for (std::int64_t j = 0; j < hidden; ++j)
            sum += static_cast<double>(load(x(row, j)) * r) * static_cast<double>(big_d(j));
          const float m = static_cast<float>(sum / static_cast<double>(hidden));
          for (std::int64_t j = 0; j < hidden; ++j) {
            const float g = (big_d(j) - load(x(row, j)) * r * m) * r;
            store(x_grad(row, j), residual_out_grad ? g + load(residual_out_grad(row, j)) : g);
          }
        });
  });
}

}  // namespace portile::norm
