#pragma once
#include <portile/kernels/mhc/expand_backward.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const expand_backward& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const std::int64_t mult = p.out_grad.extent(1);
  const auto out_grad = make_view<bf16, 3>(p.out_grad);
  const auto x_grad = make_view<bf16, 2>(p.x_grad);
  space.for_each(
      p.x_grad.extent(0), p.x_grad.extent(1), KOKKOS_LAMBDA(std::int64_t t, std::int64_t h) {
        store(x_grad(t, h), ordered_sum(mult, [&](std::int64_t i) { return load(out_grad(t, i, h)); }));
      });
}

}  // namespace portile::mhc
