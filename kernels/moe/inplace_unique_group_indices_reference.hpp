#pragma once
#include <portile/kernels/moe/inplace_unique_group_indices.hpp>

#include "backends/reference/space.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const inplace_unique_group_indices& p) {
  using namespace portile::reference;
  const auto group_idx = make_view<std::int64_t, 2>(p.group_idx);
  const std::int64_t num_topk = p.group_idx.extent(1), num_groups = p.num_groups;
  const auto trap = space.trap;

  space.for_each(
      p.group_idx.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        for (std::int64_t j = 0; j < num_topk; ++j) {
          const std::int64_t g = group_idx(t, j);
          if (g < -1 || g >= num_groups) trap.raise(0, t * num_topk + j);
          bool drop = g >= num_groups;
          for (std::int64_t i = 0; i < j; ++i) drop = drop || (g >= 0 && group_idx(t, i) == g);
          if (drop) group_idx(t, j) = -1;
        }
      });
}

}  // namespace portile::moe
