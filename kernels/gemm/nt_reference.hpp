#pragma once
#include <portile/kernels/gemm/nt.hpp>

#include "backends/reference/gemm.hpp"

namespace portile::gemm {

template <class Space>
void compute(const Space& space, const nt& p) {
  using namespace portile::reference;
  visit_product(p, [&](auto a, auto b, auto out) {
    using product_t = nt_product<decltype(a), decltype(b), decltype(out)>;
    const product_t product(p);
    const std::int64_t m = p.out.extent(0), n = p.out.extent(1);
    const std::int64_t row_tiles = numeric::ceil_div(m, product_t::max_rows),
                       col_tiles = numeric::ceil_div(n, product_t::cols);
    space.for_each(
        row_tiles, col_tiles, KOKKOS_LAMBDA(std::int64_t i, std::int64_t j) {
          const std::int64_t row = i * product_t::max_rows, left = m - row;
          product(0, row, static_cast<int>(left < product_t::max_rows ? left : product_t::max_rows), 0,
                  j * product_t::cols);
        });
  });
}

}  // namespace portile::gemm
