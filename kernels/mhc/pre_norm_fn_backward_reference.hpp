#pragma once
#include <portile/kernels/mhc/pre_norm_fn_backward.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

/// What norm_gradients keeps per token.
inline std::int64_t workspace_bytes(const pre_norm_fn_backward& p) {
  return p.out_grad.extent(0) * (p.out_grad.extent(1) + 1) * 4;
}

template <class Space>
void compute(const Space& space, const pre_norm_fn_backward& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const std::int64_t tokens = p.residual.extent(0), channels = p.fn.extent(1), hidden = p.residual.extent(2);
  const norm_gradients grads(p.fn, p.norm_weight, p.out_mul, p.sqrsum, p.out_grad, p.norm_eps,
                             space.workspace);
  const auto residual = make_view<bf16, 3>(p.residual), residual_grad = make_view<bf16, 3>(p.residual_grad);
  const merge_gradients parameters(p.fn_grad, p.norm_weight_grad, p.accumulate);
  const bool accumulate = p.accumulate_residual;

  space.for_each(
      tokens, KOKKOS_LAMBDA(std::int64_t t) { grads.prepare(t); });
  space.for_each(
      tokens, channels, KOKKOS_LAMBDA(std::int64_t t, std::int64_t k) {
        const std::int64_t i = k / hidden, h = k % hidden;
        bf16& to = residual_grad(t, i, h);
        store(to, grads.residual_grad(t, k, load(residual(t, i, h)), accumulate ? load(to) : 0.0f));
      });
  space.for_each(
      channels, KOKKOS_LAMBDA(std::int64_t k) { grads.add_parameters(parameters, residual, k); });
}

}  // namespace portile::mhc
