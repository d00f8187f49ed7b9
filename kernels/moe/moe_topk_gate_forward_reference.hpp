#pragma once
#include <portile/core/numeric/philox.hpp>
#include <portile/kernels/moe/moe_topk_gate_forward.hpp>

#include "backends/reference/gate.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const moe_topk_gate_forward& p) {
  using namespace portile::reference;
  const auto logits = make_view<float, 2>(p.logits);
  const auto topk_idx = make_view<std::int64_t, 2>(p.topk_idx);
  const auto topk_weights = make_view<float, 2>(p.topk_weights);
  const auto unmapped = make_view<std::int64_t, 2>(p.unmapped_topk_idx);
  const auto scores = make_view<float, 2>(p.scores);
  const auto* text_bias = optional_data<float>(p.bias);
  const auto* image_bias = optional_data<float>(p.image_bias);
  const auto* image = optional_data<std::uint8_t>(p.image_token_mask);
  const auto* mask = optional_data<std::uint8_t>(p.mask);
  const auto* fixed = optional_data<std::uint8_t>(p.fix_routing_mask);
  const auto* forced = optional_data<std::uint8_t>(p.force_random);
  const bool with_unmapped = p.unmapped_topk_idx.defined(), with_scores = p.scores.defined();
  const std::int64_t num_experts = p.logits.extent(1), k = p.num_topk, num_shared = num_shared_slots(p),
                     slots = k + num_shared;
  const auto scale = static_cast<float>(p.routed_scaling_factor);
  const auto seed = static_cast<std::uint64_t>(p.ep_rank);
  const auto trap = space.trap;
  const physical_map to_physical(p.to_physical_map, p.logical_count, p.ep_rank, trap, 2);

  space.for_each(
      p.logits.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        const bool masked = mask && !mask[t], random = !masked && forced && forced[t];
        if (masked || random) {
          for (std::int64_t j = 0; j < slots; ++j) topk_idx(t, j) = -1, topk_weights(t, j) = 0;
          for (std::int64_t j = 0; with_unmapped && j < k; ++j) unmapped(t, j) = -1;
          for (std::int64_t e = 0; with_scores && e < num_experts; ++e) scores(t, e) = 0;
        }
        if (masked) return;

        if (random) {
          std::int64_t num_physical = to_physical.map ? 0 : num_experts + num_shared;
          for (std::int64_t e = 0; to_physical.map && e < num_experts + num_shared; ++e)
            num_physical += to_physical.count[e];
          if (num_physical < slots) {
            trap.raise(3, t);
            return;
          }
          for (std::int64_t j = 0; j < slots; ++j) {
            const auto words = numeric::philox4x32_10(seed, static_cast<std::uint64_t>(t * 32 + j), 0);
            topk_weights(t, j) = numeric::uniform_f32(words.w[0]);
            // The q-th free id is q plus the number of taken ids up to it: the smallest fixed point.
            const auto q =
                static_cast<std::int64_t>(words.w[1] % static_cast<std::uint64_t>(num_physical - j));
            std::int64_t id = q, next = q;
            do {
              id = next;
              next = q;
              for (std::int64_t i = 0; i < j; ++i) next += topk_idx(t, i) <= id ? 1 : 0;
            } while (next != id);
            topk_idx(t, j) = id;
          }
          return;
        }

        for (std::int64_t e = 0; e < num_experts; ++e)
          if (!numeric::is_finite(logits(t, e))) trap.raise(0, t * num_experts + e);
        const token_scores score(&logits(t, 0), num_experts, scoring::sqrtsoftplus);
        for (std::int64_t e = 0; with_scores && e < num_experts; ++e) scores(t, e) = score(e);

        // Logical ids of the routed slots.
        if (fixed && fixed[t]) {
          for (std::int64_t j = 0; j < k; ++j) {
            const std::int64_t id = unmapped(t, j);
            const bool in_range = id >= 0 && id < num_experts;
            topk_idx(t, j) = in_range ? id : -1;
            if (!in_range) trap.raise(1, t * k + j);
          }
        } else {
          const float* bias = image && image[t] ? image_bias : text_bias;
          rank_place last;
          for (std::int64_t j = 0; j < k; ++j) {
            last = next_ranked(
                0, num_experts, [&](std::int64_t e) { return bias ? score(e) + bias[e] : score(e); }, last);
            topk_idx(t, j) = last.index;
            if (with_unmapped) unmapped(t, j) = last.index;
          }
        }

        const auto counted = [&](std::int64_t j) {
          return topk_idx(t, j) >= 0 && numeric::is_finite(score(topk_idx(t, j)));
        };
        float lanes[32] = {};
        for (std::int64_t j = 0; j < k; ++j)
          if (counted(j)) lanes[j] = score(topk_idx(t, j));
        const float sum = butterfly_sum(lanes) + 1e-20f;
        for (std::int64_t j = 0; j < k; ++j)
          topk_weights(t, j) = counted(j) ? score(topk_idx(t, j)) / sum * scale : 0.0f;

        for (std::int64_t j = k; j < slots; ++j)
          topk_idx(t, j) = num_experts + (j - k), topk_weights(t, j) = 1.0f;
        for (std::int64_t j = 0; j < slots; ++j) topk_idx(t, j) = to_physical(topk_idx(t, j), t);
      });
}

}  // namespace portile::moe
