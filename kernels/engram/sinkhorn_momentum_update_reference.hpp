#pragma once
#include <portile/kernels/engram/sinkhorn_momentum_update.hpp>

#include "backends/reference/space.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const sinkhorn_momentum_update& p) {
  using namespace portile::reference;
  const float b = static_cast<float>(p.beta1), a = static_cast<float>(1.0 - p.beta1);
  const bool nesterov = p.nesterov;
  const auto out = make_view<float, 1>(p.out);
  visit<float, numeric::bf16>(p.grad.dtype, [&](auto g_type) {
    visit<float, numeric::bf16>(p.momentum_buffer.dtype, [&](auto m_type) {
      const auto grad = make_view<decltype(g_type), 1>(p.grad);
      const auto momentum = make_view<decltype(m_type), 1>(p.momentum_buffer);
      space.for_each(
          p.out.extent(0), KOKKOS_LAMBDA(std::int64_t i) {
            const float g = load(grad(i));
            const float m = ::fmaf(load(momentum(i)), b, a * g);
            store(momentum(i), m);
            out(i) = nesterov ? ::fmaf(g, a, b * m) : m;
          });
    });
  });
}

}  // namespace portile::engram
