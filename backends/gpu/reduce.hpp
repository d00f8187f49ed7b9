#pragma once
// Reductions whose order is fixed by the block's size alone, so that the result does not depend on the
// launch.
#include "backends/gpu/platform.hpp"

namespace portile::gpu {

struct plus {
  template <class T>
  PORTILE_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct larger {
  template <class T>
  PORTILE_DEVICE T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

/// The reduction over each run of `lanes` neighbouring lanes (a power of two), in all of them: a butterfly,
/// the nearest lanes first.
template <class Block, class T, class F>
PORTILE_DEVICE T reduce_lanes(const Block& block, T v, int lanes, F f) {
  for (int m = 1; m < lanes; m *= 2) v = f(v, block.shuffle_xor(v, m));
  return v;
}
template <class Block, class T, class F>
PORTILE_DEVICE T reduce_wave(const Block& block, T v, F f) {
  PORTILE_UNROLL
  for (int m = 1; m < Block::wave_size; m *= 2) v = f(v, block.shuffle_xor(v, m));
  return v;
}

/// Values of shared memory that reduce_block needs.
template <class Block>
constexpr int reduce_block_values() {
  return Block::num_waves;
}
/// The reduction over the block, in all threads: of each wave, then over the waves in order. `scratch` is
/// shared memory for one T a wave; a barrier is needed before it is used for anything else.
template <class Block, class T, class F>
PORTILE_DEVICE T reduce_block(const Block& block, T v, F f, T* scratch) {
  v = reduce_wave(block, v, f);
  if constexpr (Block::num_waves == 1) return v;
  if (block.lane() == 0) scratch[block.wave()] = v;
  block.barrier();
  v = scratch[0];
  PORTILE_UNROLL
  for (int w = 1; w < Block::num_waves; ++w) v = f(v, scratch[w]);
  return v;
}

/// Several sums at once, over each wave or over the whole block, in all its threads. `scratch`: shared memory
/// for N values a wave of a block, not read by the call before; so calls in a loop take turns with two.
template <bool whole_block, class Block, class T, int N>
PORTILE_DEVICE void reduce_sums(const Block& block, T (&sums)[N], T* scratch) {
  PORTILE_UNROLL
  for (int i = 0; i < N; ++i) sums[i] = reduce_wave(block, sums[i], plus{});
  if constexpr (whole_block && Block::num_waves > 1) {
    if (block.lane() == 0) {
      PORTILE_UNROLL
      for (int i = 0; i < N; ++i) scratch[block.wave() * N + i] = sums[i];
    }
    block.barrier();
    PORTILE_UNROLL
    for (int i = 0; i < N; ++i) {
      sums[i] = scratch[i];
      PORTILE_UNROLL
      for (int w = 1; w < Block::num_waves; ++w) sums[i] += scratch[w * N + i];
    }
  }
}

/// A sum of squares that fp32 neither overflows nor loses small terms of. Others are taken again in double.
PORTILE_DEVICE bool safe_sum_of_squares(float s) { return s >= 0x1p-80f && s <= 0x1p+100f; }

/// Sums over the lanes before this one, itself included.
template <class Block, class T>
PORTILE_DEVICE T inclusive_sum_wave(const Block& block, T v) {
  PORTILE_UNROLL
  for (int d = 1; d < Block::wave_size; d *= 2) {
    const T before = block.shuffle_up(v, d);
    if (block.lane() >= d) v += before;
  }
  return v;
}

/// True in all threads of the block that comes last to `ticket`, a word that was 0 before the launch and is 0
/// again after it. What the other blocks wrote to global memory before is then visible. `flag`: one word of
/// shared memory.
template <class Block>
PORTILE_DEVICE bool last_block(const Block& block, std::uint32_t* ticket, std::uint32_t* flag) {
  block.device_fence();
  block.barrier();
  if (block.thread() == 0) {
    const auto last = static_cast<std::uint32_t>(block.grid() - 1);
    *flag = block.atomic_add(ticket, 1u) == last;
    if (*flag) *ticket = 0;
  }
  block.barrier();
  block.device_fence();
  return *flag != 0;
}

}  // namespace portile::gpu
