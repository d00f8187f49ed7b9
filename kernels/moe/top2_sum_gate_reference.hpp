#pragma once
#include <portile/kernels/moe/top2_sum_gate.hpp>

#include "backends/reference/gate.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const top2_sum_gate& p) {
  using namespace portile::reference;
  const auto logits = make_view<float, 2>(p.logits);
  const auto topk_idx = make_view<std::int64_t, 2>(p.topk_idx);
  const auto topk_weights = make_view<float, 2>(p.topk_weights);
  const auto unmapped = make_view<std::int64_t, 2>(p.unmapped_topk_idx);
  const auto* bias = optional_data<float>(p.bias);
  const auto* mask = optional_data<std::uint8_t>(p.mask);
  const auto* fixed = optional_data<std::uint8_t>(p.fix_routing_mask);
  const bool with_unmapped = p.unmapped_topk_idx.defined();
  const std::int64_t num_experts = p.logits.extent(1), k = p.num_topk, slots = k + num_shared_slots(p);
  const std::int64_t num_groups = p.num_groups, num_kept = p.num_topk_groups;
  const std::int64_t group_size = num_groups > 0 ? num_experts / num_groups : num_experts;
  const bool drop_groups = num_kept != num_groups;
  const std::int64_t extra = p.to_physical_map.defined() ? p.to_physical_map.extent(1) - 1 : 0;
  const auto scale = static_cast<float>(p.routed_scaling_factor);
  const scoring how = *scoring_from(p.scoring_func);
  const auto trap = space.trap;
  const physical_map to_physical(p.to_physical_map, p.logical_count, p.ep_rank, trap, 2);
  const tensor_parallel_mask to_local{(num_experts + extra) / p.num_ep_ranks, p.tp_rank, p.num_tp_ranks};

  space.for_each(
      p.logits.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        if (mask && !mask[t]) {
          for (std::int64_t j = 0; j < slots; ++j) topk_idx(t, j) = -1, topk_weights(t, j) = 0;
          for (std::int64_t j = 0; with_unmapped && j < k; ++j) unmapped(t, j) = -1;
          return;
        }
        for (std::int64_t e = 0; e < num_experts; ++e)
          if (!numeric::is_finite(logits(t, e))) trap.raise(0, t * num_experts + e);
        const token_scores score(&logits(t, 0), num_experts, how);

        // Logical ids of the routed slots.
        if (fixed && fixed[t]) {
          for (std::int64_t j = 0; j < k; ++j) {
            const std::int64_t id = unmapped(t, j);
            const bool in_range = id >= 0 && id < num_experts;
            topk_idx(t, j) = in_range ? id : -1;
            if (!in_range) trap.raise(1, t * k + j);
          }
        } else {
          const auto biased = [&](std::int64_t e) { return score.ranking(e) + bias[e]; };
          std::uint32_t kept = 0;  // bit g: group g takes part
          rank_place group;
          for (std::int64_t g = 0; drop_groups && g < num_kept; ++g) {
            group = next_ranked(
                0, num_groups,
                [&](std::int64_t i) {
                  return group_score(i * group_size, (i + 1) * group_size, biased, true);
                },
                group);
            kept |= std::uint32_t{1} << group.index;
          }
          const auto takes_part = [&](std::int64_t e) {
            return !drop_groups || (kept >> (e / group_size) & 1) != 0;
          };
          rank_place last;
          for (std::int64_t j = 0; j < k; ++j) {
            last = next_ranked(0, num_experts, biased, takes_part, last);
            topk_idx(t, j) = last.index;
            if (with_unmapped) unmapped(t, j) = last.index;
          }
        }

        const auto counted = [&](std::int64_t j) {
          return topk_idx(t, j) >= 0 && numeric::is_finite(score(topk_idx(t, j)));
        };
        float sum = 1e-20f;
        for (std::int64_t j = 0; j < k; ++j)
          if (counted(j)) sum = sum + score(topk_idx(t, j));
        for (std::int64_t j = 0; j < k; ++j)
          topk_weights(t, j) = counted(j) ? score(topk_idx(t, j)) / sum * scale : 0.0f;

        for (std::int64_t j = k; j < slots; ++j)
          topk_idx(t, j) = num_experts + (j - k), topk_weights(t, j) = 1.0f;
        for (std::int64_t j = 0; j < slots; ++j) topk_idx(t, j) = to_local(to_physical(topk_idx(t, j), t));
      });
}

}  // namespace portile::moe
