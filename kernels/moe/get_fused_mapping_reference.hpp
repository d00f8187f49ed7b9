#pragma once
#include <portile/core/numeric/integer.hpp>
#include <portile/kernels/moe/get_fused_mapping.hpp>

#include "backends/reference/space.hpp"

namespace portile::moe {

/// A counting sort, in one thread: the order inside an expert is part of the contract.
template <class Space>
void compute(const Space& space, const get_fused_mapping& p) {
  using namespace portile::reference;
  const auto topk_idx = make_view<std::int64_t, 2>(p.topk_idx);
  const auto pos_to_expert = make_view<std::int32_t, 1>(p.pos_to_expert);
  const auto pos_to_token = make_view<std::int32_t, 1>(p.pos_to_token);
  const auto pos_to_token_topk = make_view<std::int32_t, 1>(p.pos_to_token_topk);
  const auto token_topk_to_pos = make_view<std::int32_t, 2>(p.token_topk_to_pos);
  const auto start = make_view<std::int32_t, 1>(p.expert_start);
  const auto end = make_view<std::int32_t, 1>(p.expert_end);
  const auto count = make_view<std::int32_t, 1>(p.num_tokens_per_expert);
  const auto live = make_view<std::int32_t, 1>(p.num_live_per_expert);
  const auto list = make_view<std::int64_t, 1>(p.num_tokens_per_expert_list);
  const bool with_live = p.num_live_per_expert.defined();
  const bool with_list = p.num_tokens_per_expert_list.defined() && p.num_tokens_per_expert_list.extent(0) > 0;
  const std::int64_t num_tokens = p.topk_idx.extent(0), num_topk = p.topk_idx.extent(1);
  const std::int64_t num_experts = p.num_experts, num_rows = p.pos_to_expert.extent(0),
                     alignment = p.alignment;
  const auto trap = space.trap;

  space.for_each(
      1, KOKKOS_LAMBDA(std::int64_t) {
        const auto at_most_rows = [&](std::int64_t pos) {
          return static_cast<std::int32_t>(pos < num_rows ? pos : num_rows);
        };
        for (std::int64_t r = 0; r < num_rows; ++r)
          pos_to_expert(r) = pos_to_token(r) = pos_to_token_topk(r) = -1;

        for (std::int64_t e = 0; e < num_experts; ++e) count(e) = 0;
        for (std::int64_t t = 0; t < num_tokens; ++t)
          for (std::int64_t j = 0; j < num_topk; ++j) {
            const std::int64_t e = topk_idx(t, j);
            if (e >= 0 && e < num_experts) count(e) += 1;
            if (e < -1 || e >= num_experts) trap.raise(0, t * num_topk + j);
          }

        std::int64_t next = 0;
        for (std::int64_t e = 0; e < num_experts; ++e) {
          start(e) = at_most_rows(next);
          if (with_live) live(e) = at_most_rows(next + count(e)) - start(e);
          next += numeric::align_up(count(e), alignment);
          if (next > num_rows) trap.raise(1, e);
          end(e) = at_most_rows(next);
          count(e) = 0;  // from here on the number of rows given out
        }

        for (std::int64_t t = 0; t < num_tokens; ++t)
          for (std::int64_t j = 0; j < num_topk; ++j) {
            const std::int64_t e = topk_idx(t, j);
            const bool fits = e >= 0 && e < num_experts && start(e) + std::int64_t{count(e)} < end(e);
            token_topk_to_pos(t, j) = fits ? start(e) + count(e) : -1;
            if (!fits) continue;
            const std::int32_t pos = token_topk_to_pos(t, j);
            count(e) += 1;
            pos_to_expert(pos) = static_cast<std::int32_t>(e);
            pos_to_token(pos) = static_cast<std::int32_t>(t);
            pos_to_token_topk(pos) = static_cast<std::int32_t>(t * num_topk + j);
          }

        for (std::int64_t e = 0; e < num_experts; ++e) {
          count(e) = end(e) - start(e);
          if (with_list) list(e) = count(e);
        }
      });
}

}  // namespace portile::moe
