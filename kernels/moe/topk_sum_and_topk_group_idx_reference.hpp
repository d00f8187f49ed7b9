#pragma once
#include <portile/core/numeric/bits.hpp>
#include <portile/kernels/moe/topk_sum_and_topk_group_idx.hpp>

#include "backends/reference/ranking.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const topk_sum_and_topk_group_idx& p) {
  using namespace portile::reference;
  const auto scores = make_view<float, 3>(p.scores);
  const auto topk_group_idx = make_view<std::int64_t, 2>(p.topk_group_idx);
  const std::int64_t num_groups = p.scores.extent(1), group_size = p.scores.extent(2),
                     num_kept = p.num_topk_groups;
  const bool sum_of_two = p.num_topk_sum == 2;
  const auto trap = space.trap;

  space.for_each(
      p.scores.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        for (std::int64_t g = 0; g < num_groups; ++g)
          for (std::int64_t i = 0; i < group_size; ++i)
            if (numeric::is_nan(scores(t, g, i))) trap.raise(0, (t * num_groups + g) * group_size + i);
        const auto sum = [&](std::int64_t g) {
          return group_score(
              0, group_size, [&](std::int64_t i) { return scores(t, g, i); }, sum_of_two);
        };
        rank_place last;
        for (std::int64_t j = 0; j < num_kept; ++j) {
          last = next_ranked(0, num_groups, sum, last);
          topk_group_idx(t, j) = last.index;
        }
      });
}

}  // namespace portile::moe
