#pragma once
// What the gates and the operations on routed ids share.
#include <portile/core/numeric/rank_key.hpp>
#include <portile/core/tensor.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {

/// Threads of a token with k slots, a lane a slot: the power of two from k on, at most 32.
inline int slot_lanes(std::int64_t k) {
  int lanes = 1;
  while (lanes < k && lanes < 32) lanes *= 2;
  return lanes;
}

/// Logical to physical expert ids: the copies of an expert take turns by rank and row.
struct physical_map {
  const std::int32_t* map = nullptr;  ///< null: ids stay as they are
  const std::int32_t* count = nullptr;
  std::int64_t columns = 0;
  std::uint64_t ep_rank = 0;

  physical_map() = default;
  physical_map(const tensor& m, const tensor& n, std::int64_t rank)
      : map(m.defined() ? static_cast<const std::int32_t*>(m.data) : nullptr),
        count(n.defined() ? static_cast<const std::int32_t*>(n.data) : nullptr),
        columns(m.defined() ? m.extent(1) : 0),
        ep_rank(static_cast<std::uint64_t>(rank)) {}

  PORTILE_DEVICE std::int64_t operator()(std::int64_t id, std::int64_t t, std::uint64_t* trap,
                                         unsigned rule) const {
    if (!map || id < 0) return id;
    const std::int32_t copies = count[id];
    if (copies < 1 || copies > columns) {
      raise_trap(trap, rule, id);
      return -1;
    }
    const std::uint64_t turn = ep_rank + static_cast<std::uint64_t>(t) * 23333u;
    const auto n = static_cast<std::uint32_t>(copies);
    const std::uint64_t copy = turn >> 32 ? turn % n : static_cast<std::uint32_t>(turn) % n;
    return map[id * columns + static_cast<std::int64_t>(copy)];
  }
};

/// Physical ids to the ids inside this tensor-parallel rank's experts; -1 for experts of other ranks.
struct tensor_parallel_mask {
  divider per_rank, ranks;
  std::int64_t tp_rank = 0;

  tensor_parallel_mask() = default;
  tensor_parallel_mask(std::int64_t experts_per_rank, std::int64_t rank, std::int64_t num_ranks)
      : per_rank(experts_per_rank, small - 1), ranks(num_ranks, small - 1), tp_rank(rank) {}

  PORTILE_DEVICE std::int64_t operator()(std::int64_t id) const {
    if (id < 0) return -1;
    const std::int64_t rank = quotient(per_rank, id), turn = quotient(ranks, rank);
    if (rank - turn * ranks.value() != tp_rank) return -1;
    return turn * per_rank.value() + (id - rank * per_rank.value());
  }

 private:
  static constexpr std::int64_t small = std::int64_t{1} << 31;
  static PORTILE_DEVICE std::int64_t quotient(const divider& d, std::int64_t n) {
    return n < small ? d.quotient(n) : n / d.value();
  }
};

/// The score with this key, apart from the sign of a zero.
PORTILE_DEVICE float score_of_key(std::uint32_t key) {
  if (key == 0) return numeric::quiet_nan();
  return numeric::bits_float(key >> 31 ? key & numeric::fp32_abs_mask : ~key);
}

/// The two largest keys seen, each one more than numeric::rank_key: 0 is no score at all.
struct best_two {
  std::uint32_t first = 0, second = 0;

  PORTILE_DEVICE void add(std::uint32_t key) {
    const std::uint32_t lower = key < first ? key : first;
    first = key < first ? first : key;
    second = lower > second ? lower : second;
  }
  /// Those of `lanes` neighbouring lanes (a power of two) together, in all of them.
  template <class Block>
  PORTILE_DEVICE void join(const Block& block, int lanes) {
    for (int m = 1; m < lanes; m *= 2) {
      const std::uint32_t other_first = block.shuffle_xor(first, m),
                          other_second = block.shuffle_xor(second, m);
      add(other_first);
      add(other_second);
    }
  }
  /// Key, plus one, of the group whose scores were added. Equal keys are equal scores but for the sign of a
  /// zero, which the key of their sum does not see.
  PORTILE_DEVICE std::uint32_t group_key(bool sum_of_two) const {
    if (!sum_of_two) return first;
    return numeric::rank_key(score_of_key(first - 1) + score_of_key(second - 1)) + 1;
  }
};

/// Neighbouring lanes of a group where a wave shares its lanes among at most as many groups: a power of two.
template <class Block>
PORTILE_DEVICE int lanes_of_group(std::int64_t groups) {
  int lanes = Block::wave_size;
  while (lanes * groups > Block::wave_size) lanes /= 2;
  return lanes;
}
/// From what each lane has seen of its group, lane / lanes, the key (plus one) of group g in lane g; 0 in the
/// lanes past the groups.
template <class Block>
PORTILE_DEVICE std::uint32_t group_keys(const Block& block, best_two best, int lanes, std::int64_t groups,
                                        bool sum_of_two) {
  best.join(block, lanes);
  const std::uint32_t key = block.lane() / lanes < groups ? best.group_key(sum_of_two) : 0;
  const std::uint32_t mine = block.shuffle(key, block.lane() * lanes % Block::wave_size);
  return block.lane() < groups ? mine : 0;
}

}  // namespace portile::gpu
