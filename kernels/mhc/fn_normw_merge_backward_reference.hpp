#pragma once
#include <portile/kernels/mhc/fn_normw_merge_backward.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const fn_normw_merge_backward& p) {
  using namespace portile::reference;
  const std::int64_t rows = p.fn.extent(0);
  const auto fn = make_view<float, 2>(p.fn), out_grad = make_view<float, 2>(p.out_grad);
  const auto norm_weight = make_view<float, 1>(p.norm_weight);
  const merge_gradients grads(p.fn_grad, p.norm_weight_grad, p.accumulate);
  space.for_each(
      p.fn.extent(1), KOKKOS_LAMBDA(std::int64_t k) {
        grads.add(rows, k, fn, norm_weight(k), [&](std::int64_t j) { return out_grad(j, k); });
      });
}

}  // namespace portile::mhc
