#pragma once
#include <portile/kernels/moe/group_count.hpp>

#include "backends/reference/space.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const group_count& p) {
  using namespace portile::reference;
  const auto* group_idx = static_cast<const std::int64_t*>(p.group_idx.data);
  const auto out = make_view<std::int32_t, 1>(p.out);
  const std::int64_t num_slots = p.group_idx.numel(), num_groups = p.num_groups;
  const auto trap = space.trap;

  space.for_each(
      1, KOKKOS_LAMBDA(std::int64_t) {
        for (std::int64_t g = 0; g < num_groups; ++g) out(g) = 0;
        for (std::int64_t i = 0; i < num_slots; ++i) {
          const std::int64_t g = group_idx[i];
          if (g >= 0 && g < num_groups) out(g) += 1;
          if (g < -1 || g >= num_groups) trap.raise(0, i);
        }
      });
}

}  // namespace portile::moe
