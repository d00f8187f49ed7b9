#pragma once
#include <portile/kernels/moe/aux_fi.hpp>

#include "backends/reference/space.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const aux_fi& p) {
  using namespace portile::reference;
  const auto* topk_idx = static_cast<const std::int64_t*>(p.topk_idx.data);
  const auto out = make_view<float, 1>(p.out);
  const std::int64_t num_tokens = p.topk_idx.extent(0), num_slots = p.topk_idx.numel(),
                     num_experts = p.num_experts;
  const std::int64_t total = num_tokens * p.num_aux_topk;
  const auto trap = space.trap;

  space.for_each(
      num_slots, KOKKOS_LAMBDA(std::int64_t i) {
        if (topk_idx[i] < -1 || topk_idx[i] >= num_experts) trap.raise(0, i);
      });
  space.for_each(
      num_experts, KOKKOS_LAMBDA(std::int64_t e) {
        std::int64_t count = 0;
        for (std::int64_t i = 0; i < num_slots; ++i) count += topk_idx[i] == e ? 1 : 0;
        out(e) = num_tokens == 0 ? 0.0f : static_cast<float>(count * num_experts) / static_cast<float>(total);
      });
}

}  // namespace portile::moe
