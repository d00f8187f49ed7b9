#pragma once
// The steps of a gate for one token, as the references write them.
#include <portile/core/numeric/bits.hpp>
#include <portile/core/numeric/elementary.hpp>
#include <portile/kernels/moe/gate.hpp>

#include "backends/reference/ranking.hpp"

namespace portile::reference {

/// The row of token t for a gate: scores of its logits.
struct token_scores {
  const float* logits;
  std::int64_t num_experts;
  moe::scoring how;
  float max = 0, sum = 1;  ///< of softmax, over the logits that are not NaN

  KOKKOS_FUNCTION token_scores(const float* row, std::int64_t n, moe::scoring s)
      : logits(row), num_experts(n), how(s) {
    if (how != moe::scoring::softmax) return;
    max = -numeric::infinity();
    for (std::int64_t e = 0; e < n; ++e)
      if (logits[e] > max) max = logits[e];
    double total = 0;
    for (std::int64_t e = 0; e < n; ++e)
      if (!numeric::is_nan(logits[e] - max)) total += numeric::exp_f32(logits[e] - max);
    sum = static_cast<float>(total);
  }
  KOKKOS_FUNCTION float operator()(std::int64_t e) const {
    const float x = logits[e];
    switch (how) {
      case moe::scoring::sigmoid:
        return numeric::sigmoid_f32(x);
      case moe::scoring::sqrtsoftplus:
        return numeric::sqrt_softplus_f32(x);
      default:
        return numeric::exp_f32(x - max) / sum;
    }
  }
  /// What experts are ordered by before the bias is added.
  KOKKOS_FUNCTION float ranking(std::int64_t e) const {
    return how == moe::scoring::softmax ? logits[e] : (*this)(e);
  }
};

/// Logical to physical expert ids: the copies of an expert take turns by rank and row.
struct physical_map {
  const std::int32_t* map = nullptr;  ///< null: ids stay as they are
  const std::int32_t* count = nullptr;
  std::int64_t columns = 0;
  std::int64_t ep_rank = 0;
  trap_sink trap;
  unsigned rule;  ///< raised with the logical id when its count is not in 1..columns; the id is then -1

  physical_map(const tensor& m, const tensor& n, std::int64_t rank, trap_sink sink, unsigned number)
      : map(static_cast<const std::int32_t*>(m.data)),
        count(static_cast<const std::int32_t*>(n.data)),
        columns(m.defined() ? m.extent(1) : 0),
        ep_rank(rank),
        trap(sink),
        rule(number) {}

  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t id, std::int64_t t) const {
    if (!map || id < 0) return id;
    if (count[id] < 1 || count[id] > columns) {
      trap.raise(rule, id);
      return -1;
    }
    const auto copy = (static_cast<std::uint64_t>(ep_rank) + static_cast<std::uint64_t>(t) * 23333u) %
                      static_cast<std::uint64_t>(count[id]);
    return map[id * columns + static_cast<std::int64_t>(copy)];
  }
};

/// Physical ids to the ids inside this tensor-parallel rank's experts; -1 for experts of other ranks.
struct tensor_parallel_mask {
  std::int64_t experts_per_rank, tp_rank, num_tp_ranks;

  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t id) const {
    if (id < 0) return -1;
    const std::int64_t rank = id / experts_per_rank;
    if (rank % num_tp_ranks != tp_rank) return -1;
    return rank / num_tp_ranks * experts_per_rank + id % experts_per_rank;
  }
};

}  // namespace portile::reference
