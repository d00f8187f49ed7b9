#pragma once
// The total order of top-k, and the sums that gates fix the order of.
#include <portile/core/numeric/rank_key.hpp>

#include "backends/reference/space.hpp"

namespace portile::reference {

/// Place of an item in the total order: the larger key first, then the smaller index. The default one is
/// before every item.
struct rank_place {
  std::uint32_t key = 0xFFFFFFFFu;
  std::int64_t index = -1;
};

KOKKOS_INLINE_FUNCTION bool ranks_before(const rank_place& a, const rank_place& b) {
  return a.key != b.key ? a.key > b.key : a.index < b.index;
}

/// The item of [first, last) that follows `after`, of those that take(i) admits; value(i) is its score.
/// Called k times it gives the top k, each once, without memory of its own. Only when no item is left the
/// index is -1.
template <class Value, class Take>
KOKKOS_INLINE_FUNCTION rank_place next_ranked(std::int64_t first, std::int64_t last, const Value& value,
                                              const Take& take, const rank_place& after) {
  rank_place best{0, -1};
  for (std::int64_t i = first; i < last; ++i) {
    if (!take(i)) continue;
    const rank_place here{numeric::rank_key(value(i)), i};
    if (ranks_before(after, here) && (best.index < 0 || ranks_before(here, best))) best = here;
  }
  return best;
}
template <class Value>
KOKKOS_INLINE_FUNCTION rank_place next_ranked(std::int64_t first, std::int64_t last, const Value& value,
                                              const rank_place& after) {
  return next_ranked(
      first, last, value, [](std::int64_t) { return true; }, after);
}

/// Score of a group of experts: its best value, or the fp32 sum of its two best.
template <class Value>
KOKKOS_INLINE_FUNCTION float group_score(std::int64_t first, std::int64_t last, const Value& value,
                                         bool sum_of_two) {
  const rank_place best = next_ranked(first, last, value, rank_place{});
  if (!sum_of_two) return value(best.index);
  return value(best.index) + value(next_ranked(first, last, value, best).index);
}

/// Sum of 32 lanes as a butterfly of xor shuffles gives it (16, 8, 4, 2, 1): every lane ends with this value.
/// Overwrites v.
KOKKOS_INLINE_FUNCTION float butterfly_sum(float (&v)[32]) {
  for (int m = 16; m > 0; m /= 2)
    for (int l = 0; l < m; ++l) v[l] = v[l] + v[l + m];
  return v[0];
}

}  // namespace portile::reference
