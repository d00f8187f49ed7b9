#pragma once
#include <portile/kernels/mhc/block_backward.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

/// What norm_gradients keeps per token.
inline std::int64_t workspace_bytes(const block_backward& p) {
  return p.mixes_grad.extent(0) * (p.mixes_grad.extent(1) + 1) * 4;
}

template <class Space>
void compute(const Space& space, const block_backward& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const std::int64_t tokens = p.residual.extent(0), mult = p.residual.extent(1),
                     hidden = p.residual.extent(2);
  const std::int64_t streams = p.out_grad.defined() ? mult : 0;
  const norm_gradients grads(p.fn, p.norm_weight, p.out_mul, p.sqrsum, p.mixes_grad, p.norm_eps,
                             space.workspace);
  const auto residual = make_view<bf16, 3>(p.residual), out_grad = make_view<bf16, 3>(p.out_grad);
  const auto residual_grad = make_view<bf16, 3>(p.residual_grad);
  const auto layer_input_grad = make_view<bf16, 2>(p.layer_input_grad);
  const auto pre_mix = make_view<float, 2>(p.pre_mix);
  const auto comb_mix = make_view<float, 3>(p.comb_mix);
  const merge_gradients parameters(p.fn_grad, p.norm_weight_grad, p.accumulate);

  space.for_each(
      tokens, KOKKOS_LAMBDA(std::int64_t t) { grads.prepare(t); });
  space.for_each(
      tokens, mult * hidden, KOKKOS_LAMBDA(std::int64_t t, std::int64_t k) {
        const std::int64_t i = k / hidden, h = k % hidden;
        float sum = apply_mix(
            streams, [&](std::int64_t o) { return comb_mix(t, i, o); },
            [&](std::int64_t o) { return load(out_grad(t, o, h)); });
        sum = ::fmaf(pre_mix(t, i), load(layer_input_grad(t, h)), sum);
        store(residual_grad(t, i, h), grads.residual_grad(t, k, load(residual(t, i, h)), sum));
      });
  space.for_each(
      mult * hidden, KOKKOS_LAMBDA(std::int64_t k) { grads.add_parameters(parameters, residual, k); });
}

}  // namespace portile::mhc
