#pragma once
#include <portile/core/numeric/elementary.hpp>
#include <portile/kernels/engram/gate.hpp>
#include <portile/kernels/engram/kv.hpp>

#include "backends/reference/optional.hpp"

namespace portile::engram {

template <class Space>
void compute(const Space& space, const gate& p) {
  using namespace portile::reference;
  using numeric::bf16;
  const std::int64_t hidden = p.out.extent(2);
  const keys_and_values given = split_kv(p.kv, p.k, p.v);
  const auto x = make_view<bf16, 3>(p.hidden_states), k = make_view<bf16, 3>(given.k),
             out = make_view<bf16, 3>(p.out);
  const auto v = make_view<bf16, 2>(given.v);
  const auto w = make_view<float, 2>(p.weight_fused);
  const auto mask = make_view<unsigned char, 1>(p.image_token_mask);
  const optional_view<float, 2> dot(p.dot), gate_score(p.gate_score), rstd_x(p.rstd_x), rstd_k(p.rstd_k);
  const float size = static_cast<float>(hidden), c = 1.0f / ::sqrtf(size);
  const float eps = static_cast<float>(p.eps), clamp = static_cast<float>(p.clamp_value);
  const bool has_mask = p.image_token_mask.defined(), add_residual = p.add_residual;

  space.for_each(
      p.out.extent(0), p.out.extent(1), KOKKOS_LAMBDA(std::int64_t t, std::int64_t i) {
        if (has_mask && mask(t)) {
          for (std::int64_t d = 0; d < hidden; ++d) out(t, i, d) = add_residual ? x(t, i, d) : bf16{0};
          for (const auto* saved : {&dot, &gate_score, &rstd_x, &rstd_k}) saved->set(0, t, i);
          return;
        }
        double x_squares = 0, k_squares = 0, xwk = 0;
        for (std::int64_t d = 0; d < hidden; ++d) {
          const double xd = load(x(t, i, d)), kd = load(k(t, i, d));
          x_squares += xd * xd;
          k_squares += kd * kd;
          xwk += xd * w(i, d) * kd;
        }
        const float rx = 1.0f / ::sqrtf(static_cast<float>(x_squares) / size + eps);
        const float rk = 1.0f / ::sqrtf(static_cast<float>(k_squares) / size + eps);
        const float raw = static_cast<float>(xwk), s = raw * rx * rk * c;
        const float magnitude = ::fabsf(s) < clamp ? clamp : ::fabsf(s);  // NaN stays
        const float g = numeric::sigmoid_f32(::copysignf(::sqrtf(magnitude), s));
        for (std::int64_t d = 0; d < hidden; ++d)
          store(out(t, i, d), add_residual ? ::fmaf(g, load(v(t, d)), load(x(t, i, d))) : g * load(v(t, d)));
        dot.set(raw, t, i);
        gate_score.set(g, t, i);
        rstd_x.set(rx, t, i);
        rstd_k.set(rk, t, i);
      });
}

}  // namespace portile::engram
