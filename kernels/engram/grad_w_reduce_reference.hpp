#pragma once
#include <portile/kernels/engram/grad_w_reduce.hpp>

#include "backends/reference/space.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const grad_w_reduce& p) {
  using namespace portile::reference;
  const std::int64_t partials = p.weight_fused_grad_partial.extent(0);
  const auto partial = make_view<float, 3>(p.weight_fused_grad_partial);
  const auto hidden = make_view<numeric::bf16, 2>(p.weight_hidden),
             embed = make_view<numeric::bf16, 2>(p.weight_embed);
  const auto hidden_grad = make_view<float, 2>(p.weight_hidden_grad),
             embed_grad = make_view<float, 2>(p.weight_embed_grad);
  const bool accumulate = p.accumulate;
  space.for_each(
      p.weight_hidden.extent(0), p.weight_hidden.extent(1), KOKKOS_LAMBDA(std::int64_t i, std::int64_t d) {
        float a = 0;
        for (std::int64_t n = 0; n < partials; ++n) a += partial(n, i, d);
        hidden_grad(i, d) = ::fmaf(a, load(embed(i, d)), accumulate ? hidden_grad(i, d) : 0.0f);
        embed_grad(i, d) = ::fmaf(a, load(hidden(i, d)), accumulate ? embed_grad(i, d) : 0.0f);
      });
}

}  // namespace portile::engram
