#pragma once
#include <portile/core/numeric/bits.hpp>
#include <portile/kernels/moe/topk_gate.hpp>

#include "backends/reference/ranking.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const topk_gate& p) {
  using namespace portile::reference;
  const auto scores = make_view<float, 2>(p.scores);
  const auto topk_idx = make_view<std::int64_t, 2>(p.topk_idx);
  const std::int64_t num_experts = p.scores.extent(1), num_topk = p.num_topk;
  const bool require_finite = p.require_finite;
  const auto trap = space.trap;

  space.for_each(
      p.scores.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        for (std::int64_t e = 0; e < num_experts; ++e) {
          if (numeric::is_nan(scores(t, e)))
            trap.raise(0, t * num_experts + e);
          else if (require_finite && !numeric::is_finite(scores(t, e)))
            trap.raise(1, t * num_experts + e);
        }
        rank_place last;
        for (std::int64_t j = 0; j < num_topk; ++j) {
          last = next_ranked(
              0, num_experts, [&](std::int64_t e) { return scores(t, e); }, last);
          topk_idx(t, j) = last.index;
        }
      });
}

}  // namespace portile::moe
