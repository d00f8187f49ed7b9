#pragma once
// Top-k in a wave's registers. Keys are one more than numeric::rank_key, so that 0 is left for what is not
// there or taken.
#include <utility>

#include <portile/core/numeric/rank_key.hpp>

#include "backends/gpu/platform.hpp"

namespace portile::gpu {

/// The pairs of Batcher's odd-even merge sort of n values, in order.
template <int n>
struct sorting_network {
  struct pair {
    int i, j;
  };
  pair pairs[n * n] = {};
  int size = 0;

  constexpr sorting_network() {
    for (int p = 1; p < n; p *= 2)
      for (int k = p; k >= 1; k /= 2)
        for (int j = k % p; j + k < n; j += 2 * k)
          for (int i = 0; i < k && i + j + k < n; ++i)
            if ((i + j) / (2 * p) == (i + j + k) / (2 * p)) pairs[size++] = {i + j, i + j + k};
  }
};

/// Calls exchange(i, j), i < j, for each pair: the indices are constants, so that what they index stays in
/// registers.
template <int n, class F>
PORTILE_DEVICE void sort_network(F exchange) {
  constexpr sorting_network<n> network;
  const auto all = [&]<int... s>(std::integer_sequence<int, s...>) {
    (exchange(std::integral_constant<int, network.pairs[s].i>{},
              std::integral_constant<int, network.pairs[s].j>{}),
     ...);
  };
  all(std::make_integer_sequence<int, network.size>{});
}

/// Sorts a lane's keys, the largest first, equal ones by place; `place` says where in the lane a key was.
template <int held>
PORTILE_DEVICE void sort_lane(std::uint32_t (&key)[held], std::uint32_t (&place)[held]) {
  sort_network<held>([&](auto i, auto j) {
    const bool swap = key[j] > key[i] || (key[j] == key[i] && place[j] < place[i]);
    const std::uint32_t key_i = key[i], place_i = place[i];
    key[i] = swap ? key[j] : key_i;
    key[j] = swap ? key_i : key[j];
    place[i] = swap ? place[j] : place_i;
    place[j] = swap ? place_i : place[j];
  });
}

/// Takes the largest key out of the wave's sorted lanes and returns lane * held + place: the first lane that
/// has it holds the smallest id, so ties cost nothing.
template <int held, class Block>
PORTILE_DEVICE std::int64_t take_best(const Block& block, std::uint32_t (&key)[held],
                                      std::uint32_t (&place)[held]) {
  const std::uint32_t best = block.wave_max(key[0]);
  const int winner = first_lane(block.ballot(key[0] == best));
  const std::uint32_t taken = block.shuffle(place[0], winner);
  if (block.lane() == winner) {
    PORTILE_UNROLL
    for (int i = 0; i + 1 < held; ++i) {
      key[i] = key[i + 1];
      place[i] = place[i + 1];
    }
    key[held - 1] = 0;
  }
  return std::int64_t{winner} * held + taken;
}

/// How a wave holds a row: register i of a lane has the value of this index, 2^run_shift neighbours in a row.
template <class Block>
PORTILE_DEVICE int spread_index(const Block& block, int i, int run_shift) {
  const int run = (i >> run_shift) * Block::wave_size + block.lane();
  return (run << run_shift) + (i & ((1 << run_shift) - 1));
}
/// A lane's values of a row; `absent` past its end.
template <int held, class Block>
PORTILE_DEVICE void load_spread(const Block& block, const float* row, int size, bool aligned, float absent,
                                float (&v)[held]) {
  if (held % 4 == 0 && aligned) {
    PORTILE_UNROLL
    for (int i = 0; i < held; i += 4) {
      const int at = spread_index(block, i, 2);
      const words4 w = at < size ? load16(row + at)
                                 : words4{{numeric::float_bits(absent), numeric::float_bits(absent),
                                           numeric::float_bits(absent), numeric::float_bits(absent)}};
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) v[(i + j) % held] = numeric::bits_float(w.w[j]);
    }
  } else {
    PORTILE_UNROLL
    for (int i = 0; i < held; ++i) {
      const int at = spread_index(block, i, 0);
      v[i] = at < size ? row[at] : absent;
    }
  }
}

template <int held, class Block>
PORTILE_DEVICE void store_spread(const Block& block, float* row, int size, bool aligned,
                                 const float (&v)[held]) {
  if (held % 4 == 0 && aligned) {
    PORTILE_UNROLL
    for (int i = 0; i < held; i += 4) {
      const int at = spread_index(block, i, 2);
      words4 w;
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) w.w[j] = numeric::float_bits(v[(i + j) % held]);
      if (at < size) store16(row + at, w);
    }
  } else {
    PORTILE_UNROLL
    for (int i = 0; i < held; ++i) {
      const int at = spread_index(block, i, 0);
      if (at < size) row[at] = v[i];
    }
  }
}

/// Top-k by candidates: the k-th largest of the lanes' own largest values bounds the k-th largest of all from
/// below, and few values reach it. These go to slots of shared memory, one a lane, and are ranked by
/// counting.
template <class Block>
struct candidates {
  static constexpr std::size_t bytes = Block::wave_size * sizeof(std::uint64_t);  ///< of a wave

  std::uint32_t* slots;
  int count = 0;  ///< more than the lanes: nothing was kept

  PORTILE_DEVICE explicit candidates(const Block& block)
      : slots(block.template shared<std::uint32_t>(static_cast<std::size_t>(block.wave()) * bytes)) {}

  /// The k-th largest of the lanes' values, or less where some are equal: none of them is a NaN.
  static PORTILE_DEVICE float bound(const Block& block, float largest, int k) {
    std::uint32_t key = order(largest), last = 0;
    for (int r = 0; r < k; ++r) {
      last = block.wave_max(key);
      if (key == last) key = 0;
    }
    return last == 0 ? -numeric::infinity()
                     : numeric::bits_float(last & 0x80000000u ? last ^ 0x80000000u : ~last);
  }
  /// Bit i of `marks`: the lane's value in register i is a candidate.
  PORTILE_DEVICE void gather(const Block& block, std::uint32_t marks, int run_shift) {
    block.wave_barrier();  // the slots may still be looked at for the last row
    const std::uint64_t below = (std::uint64_t{1} << block.lane()) - 1;
    for (std::uint64_t have = block.ballot(marks != 0); have != 0; have = block.ballot(marks != 0)) {
      const int slot = count + count_lanes(have & below);
      count += count_lanes(have);
      if (count > Block::wave_size) return;
      if (marks != 0) {
        slots[slot] = static_cast<std::uint32_t>(spread_index(block, first_lane(marks), run_shift));
        marks &= marks - 1;
      }
    }
    block.wave_barrier();
  }
  /// How many candidates come before the lane's own, which has this key and id. Those without one have key 0.
  PORTILE_DEVICE int rank(const Block& block, std::uint32_t key, std::uint32_t id) {
    auto* keys = reinterpret_cast<std::uint64_t*>(slots);
    const std::uint64_t own = key == 0 ? 0 : std::uint64_t{key} << 32 | ~id;
    block.wave_barrier();
    keys[block.lane()] = own;
    block.wave_barrier();
    int before = 0;
    for (int j = 0; j < count; j += 4) {
      PORTILE_UNROLL
      for (int u = 0; u < 4; ++u) before += keys[j + u] > own;
    }
    return before;
  }

 private:
  /// As numeric::rank_key but for zeros.
  static PORTILE_DEVICE std::uint32_t order(float x) {
    const std::uint32_t u = numeric::float_bits(x);
    return (u >> 31) != 0 ? ~u : (u | 0x80000000u);
  }
};

}  // namespace portile::gpu
