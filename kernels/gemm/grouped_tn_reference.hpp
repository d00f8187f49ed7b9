#pragma once
#include <portile/kernels/gemm/grouped_tn.hpp>

#include "backends/reference/gemm.hpp"

namespace portile::gemm {

template <class Space>
void compute(const Space& space, const grouped_tn& p) {
  using namespace portile::reference;
  constexpr int cols = 64;  // of out, per step
  const std::int64_t experts = p.out.extent(0), m = p.out.extent(1), n = p.out.extent(2);
  const expert_rows rows_of =
      make_expert_rows(p.expert_start, p.expert_end, p.num_live_per_expert, {}, p.a.extent(0));
  const bool accumulate = p.accumulate, truncate = p.tf32_rounding == "truncate";
  const auto trap = space.trap;
  space.for_each(
      experts, KOKKOS_LAMBDA(std::int64_t e) { rows_of.report(e, trap); });

  const view<float, 3> out = make_view<float, 3>(p.out);
  visit<numeric::bf16, float>(p.a.dtype, [&](auto type) {
    const factor<decltype(type)> a(p.a, truncate), b(p.b, truncate);
    space.for_each(
        experts * m, numeric::ceil_div(n, cols), KOKKOS_LAMBDA(std::int64_t em, std::int64_t tile) {
          const std::int64_t e = em / m, i = em % m, first = tile * cols;
          const int count = static_cast<int>(n - first < cols ? n - first : cols);
          double sum[cols] = {};
          bool any = false;
          // In the order of the rows, from 0.
          rows_of.for_each_run(e, 1, [&](std::int64_t row, int) {
            const double x = a(0, row, i);
            for (int j = 0; j < count; ++j) sum[j] += x * b(0, row, first + j);
            any = true;
          });
          if (!any && accumulate) return;
          for (int j = 0; j < count; ++j) {
            float& to = out(e, i, first + j);
            store_sum(to, accumulate ? sum[j] + static_cast<double>(to) : sum[j]);
          }
        });
  });
}

}  // namespace portile::gemm
