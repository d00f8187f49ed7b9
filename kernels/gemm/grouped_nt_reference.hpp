#pragma once
#include <portile/kernels/gemm/grouped_nt.hpp>

#include "backends/reference/gemm.hpp"

namespace portile::gemm {

template <class Space>
void compute(const Space& space, const grouped_nt& p) {
  using namespace portile::reference;
  const std::int64_t experts = p.b.extent(0);
  const bool masked = p.a.rank == 3;
  const expert_rows rows_of = make_expert_rows(p.expert_start, p.expert_end, p.num_live_per_expert,
                                               p.masked_m, p.a.extent(masked ? 1 : 0));
  const auto trap = space.trap;
  space.for_each(
      experts, KOKKOS_LAMBDA(std::int64_t e) { rows_of.report(e, trap); });

  visit_product(p, [&](auto a, auto b, auto out) {
    using product_t = nt_product<decltype(a), decltype(b), decltype(out)>;
    const product_t product(p);
    space.for_each(
        experts, numeric::ceil_div(product.n, product_t::cols),
        KOKKOS_LAMBDA(std::int64_t e, std::int64_t j) {
          rows_of.for_each_run(e, product_t::max_rows, [&](std::int64_t row, int count) {
            product(masked ? e : 0, row, count, e, j * product_t::cols);
          });
        });
  });
}

}  // namespace portile::gemm
