#pragma once
#include <portile/core/numeric/elementary.hpp>
#include <portile/kernels/moe/moe_topk_gate_backward.hpp>

#include "backends/reference/space.hpp"

namespace portile::moe {

/// d sqrt(softplus(x)) / dx as a function of the score y: (1 - exp(-y^2)) / (2 y). The difference cancels for
/// small y, where the polynomial takes over.
constexpr float sqrt_softplus_slope(float y) {
  const float v = y * y;
  if (!(v < 1.0f)) return (1.0f - numeric::exp_f32(-v)) / (2.0f * y);
  float q = 1.29130945e-4f;
  q = ::fmaf(q, v, -1.30112655e-3f);
  q = ::fmaf(q, v, 8.27621203e-3f);
  q = ::fmaf(q, v, -4.1647464e-2f);
  q = ::fmaf(q, v, 0.166663632f);
  q = ::fmaf(q, v, -0.499999821f);
  return 0.5f * y * ::fmaf(v, q, 1.0f);
}

template <class Space>
void compute(const Space& space, const moe_topk_gate_backward& p) {
  using namespace portile::reference;
  const auto scores = make_view<float, 2>(p.scores);
  const auto topk_idx = make_view<std::int64_t, 2>(p.topk_idx);
  const auto weights = make_view<float, 2>(p.topk_weights);
  const auto weights_grad = make_view<float, 2>(p.topk_weights_grad);
  const auto sum_grad = make_view<float, 2>(p.scores_sum_grad);
  const auto logits_grad = make_view<float, 2>(p.logits_grad);
  const auto* mask = optional_data<std::uint8_t>(p.mask);
  const std::int64_t num_tokens = p.scores.extent(0), num_experts = p.scores.extent(1),
                     num_topk = p.topk_idx.extent(1);
  const std::int64_t tokens_per_seq =
      p.scores_sum_grad.defined() ? num_tokens / p.scores_sum_grad.extent(0) : num_tokens;
  const double scale = static_cast<float>(p.routed_scaling_factor);
  const auto trap = space.trap;

  space.for_each(
      num_tokens, KOKKOS_LAMBDA(std::int64_t t) {
        const auto valid = [&](std::int64_t j) {
          return topk_idx(t, j) >= 0 && topk_idx(t, j) < num_experts;
        };
        double denominator = 1e-20, weighted = 0;
        for (std::int64_t j = 0; j < num_topk; ++j) {
          if (topk_idx(t, j) >= num_experts) trap.raise(0, t * num_topk + j);
          if (!valid(j)) continue;
          denominator += scores(t, topk_idx(t, j));
          weighted += static_cast<double>(weights_grad(t, j)) * weights(t, j);
        }

        const std::int64_t q = t / tokens_per_seq;
        const bool with_aux = mask && mask[t];
        double total = 0, dot = 0;
        for (std::int64_t e = 0; with_aux && e < num_experts; ++e) {
          total += scores(t, e);
          dot += static_cast<double>(sum_grad(q, e)) * scores(t, e);
        }
        for (std::int64_t e = 0; e < num_experts; ++e) {
          double r = 0;
          for (std::int64_t j = 0; j < num_topk; ++j)
            if (topk_idx(t, j) == e) r += (scale * weights_grad(t, j) - weighted) / denominator;
          if (with_aux && total != 0) r += (sum_grad(q, e) - dot / total) / total;
          // Adding to +0 turns a product of -0 into +0.
          logits_grad(t, e) = 0.0f + static_cast<float>(r * sqrt_softplus_slope(scores(t, e)));
        }
      });
}

}  // namespace portile::moe
