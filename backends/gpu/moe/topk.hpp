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

}  // namespace portile::gpu
