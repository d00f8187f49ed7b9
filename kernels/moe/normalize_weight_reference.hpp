#pragma once
#include <portile/kernels/moe/normalize_weight.hpp>

#include "backends/reference/ranking.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const normalize_weight& p) {
  using namespace portile::reference;
  const auto weights = make_view<float, 2>(p.topk_weights);
  const auto denominator = make_view<float, 1>(p.denominator);
  const auto normalized = make_view<float, 2>(p.normalized);
  const std::int64_t num_topk = p.topk_weights.extent(1);
  const bool butterfly = p.sum_order == "butterfly";

  space.for_each(
      p.topk_weights.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        float sum = 1e-20f;
        if (butterfly) {
          float lanes[32] = {};
          for (std::int64_t j = 0; j < num_topk; ++j) lanes[j] = weights(t, j);
          sum = sum + butterfly_sum(lanes);
        } else {
          for (std::int64_t j = 0; j < num_topk; ++j) sum = sum + weights(t, j);
        }
        denominator(t) = sum;
        for (std::int64_t j = 0; j < num_topk; ++j) normalized(t, j) = weights(t, j) / sum;
      });
}

}  // namespace portile::moe
