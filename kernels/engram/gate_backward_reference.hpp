#pragma once
#include <portile/kernels/engram/gate_backward.hpp>
#include <portile/kernels/engram/kv.hpp>

#include "backends/reference/space.hpp"

namespace portile::engram {

/// Q of every token and stream.
inline std::int64_t workspace_bytes(const gate_backward& p) { return p.dot.numel() * 4; }

template <class Space>
void compute(const Space& space, const gate_backward& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const std::int64_t tokens = p.out_grad.extent(0), mult = p.out_grad.extent(1),
                     hidden = p.out_grad.extent(2);
  const keys_and_values given = split_kv(p.kv, p.k, p.v), grads = split_kv(p.kv_grad, p.k_grad, p.v_grad);
  const auto out_grad = make_view<bf16, 3>(p.out_grad), x = make_view<bf16, 3>(p.hidden_states),
             k = make_view<bf16, 3>(given.k);
  const auto x_grad = make_view<bf16, 3>(p.hidden_states_grad), k_grad = make_view<bf16, 3>(grads.k);
  const auto v = make_view<bf16, 2>(given.v), v_grad = make_view<bf16, 2>(grads.v);
  const auto w = make_view<float, 2>(p.weight_fused), w_grad = make_view<float, 2>(p.weight_fused_grad);
  const auto dot = make_view<float, 2>(p.dot), gate_score = make_view<float, 2>(p.gate_score);
  const auto rstd_x = make_view<float, 2>(p.rstd_x), rstd_k = make_view<float, 2>(p.rstd_k);
  const auto mask = make_view<unsigned char, 1>(p.image_token_mask);
  const bool has_mask = p.image_token_mask.defined(), add_residual = p.add_residual,
             accumulate = p.accumulate;
  const float size = static_cast<float>(hidden), c = 1.0f / ::sqrtf(size),
              clamp = static_cast<float>(p.clamp_value);
  auto* const q_of = static_cast<float*>(space.workspace);

  // Gradients of x and k, stream by stream; Q is kept for the weights.
  space.for_each(
      tokens, mult, KOKKOS_LAMBDA(std::int64_t t, std::int64_t i) {
        float& q = q_of[t * mult + i];
        q = 0;
        if (has_mask && mask(t)) {
          for (std::int64_t d = 0; d < hidden; ++d) {
            x_grad(t, i, d) = add_residual ? out_grad(t, i, d) : bf16{0};
            k_grad(t, i, d) = bf16{0};
          }
          return;
        }
        const float rx = rstd_x(t, i), rk = rstd_k(t, i), raw = dot(t, i), g = gate_score(t, i);
        if (!(::fabsf(raw * rx * rk * c) < clamp)) {  // a branch: raw = 0 would give 0 * inf
          double g_grad = 0;
          for (std::int64_t d = 0; d < hidden; ++d)
            g_grad += static_cast<double>(load(out_grad(t, i, d))) * load(v(t, d));
          q = static_cast<float>(g_grad) * (g * (1.0f - g)) * 0.5f * ::sqrtf(c * rx * rk / ::fabsf(raw));
        }
        const float x_slope = raw * (rx * rx) / size, k_slope = raw * (rk * rk) / size;
        for (std::int64_t d = 0; d < hidden; ++d) {
          const float xd = load(x(t, i, d)), kd = load(k(t, i, d)),
                      residual = add_residual ? load(out_grad(t, i, d)) : 0.0f;
          store(x_grad(t, i, d), ::fmaf(q, kd * w(i, d) - xd * x_slope, residual));
          store(k_grad(t, i, d), q * (xd * w(i, d) - kd * k_slope));
        }
      });

  space.for_each(
      tokens, hidden, KOKKOS_LAMBDA(std::int64_t t, std::int64_t d) {
        float sum = 0;
        if (!(has_mask && mask(t)))
          for (std::int64_t i = 0; i < mult; ++i)
            sum = ::fmaf(load(out_grad(t, i, d)), gate_score(t, i), sum);
        store(v_grad(t, d), sum);
      });

  space.for_each(
      mult, hidden, KOKKOS_LAMBDA(std::int64_t i, std::int64_t d) {
        double sum = accumulate ? w_grad(i, d) : 0.0f;
        for (std::int64_t t = 0; t < tokens; ++t)
          if (!(has_mask && mask(t)))
            sum += static_cast<double>(q_of[t * mult + i]) * load(x(t, i, d)) * load(k(t, i, d));
        w_grad(i, d) = static_cast<float>(sum);
      });
}

}  // namespace portile::engram
