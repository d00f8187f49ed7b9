#pragma once
#include <portile/kernels/moe/mask_indices_by_tp.hpp>

#include "backends/reference/gate.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const mask_indices_by_tp& p) {
  using namespace portile::reference;
  const tensor_parallel_mask to_local{p.num_experts / p.num_ep_ranks, p.tp_rank, p.num_tp_ranks};
  visit<std::int64_t, std::int32_t>(p.indices.dtype, [&](auto id) {
    const auto indices = make_view<decltype(id), 2>(p.indices), out = make_view<decltype(id), 2>(p.out);
    space.for_each(
        p.indices.extent(0), p.indices.extent(1), KOKKOS_LAMBDA(std::int64_t t, std::int64_t j) {
          out(t, j) = static_cast<decltype(id)>(to_local(indices(t, j)));
        });
  });
}

}  // namespace portile::moe
