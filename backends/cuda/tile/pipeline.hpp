#pragma once
// Stages of shared memory between the copy engine and the tensor cores.
#include "backends/cuda/ptx/cluster.hpp"
#include "backends/cuda/ptx/mbarrier.hpp"

namespace portile::cuda {

/// Which stage, and in which turn of it, an end of the pipeline is. Both ends step through the same sequence.
struct stage_place {
  int stage = 0;
  std::uint32_t phase = 0;
  constexpr void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
  /// As `count` times next.
  constexpr void skip(int count, int stages) {
    stage += count;
    phase ^= static_cast<std::uint32_t>(stage / stages) & 1;
    stage %= stages;
  }
};

/// The barriers of a pipeline, `stages` full ones and as many empty ones behind each other in shared memory.
///   producer: wait_empty, arm, start copies that complete on full(), next
///   consumer: wait_full, read, release, next
struct pipeline {
  std::uint32_t barriers;
  int stages;

  static constexpr int bytes(int stages) { return 16 * stages; }

  PORTILE_PTX std::uint32_t full(int stage) const { return barriers + 8 * stage; }
  PORTILE_PTX std::uint32_t empty(int stage) const { return barriers + 8 * (stages + stage); }

  /// One thread. `consumers`: arrivals that free a stage.
  PORTILE_PTX void init(int consumers) const {
    for (int s = 0; s < stages; ++s) {
      ptx::mbarrier_init(full(s), 1);
      ptx::mbarrier_init(empty(s), consumers);
    }
  }
  PORTILE_PTX void wait_empty(const stage_place& at) const {
    while (!ptx::mbarrier_try_wait(empty(at.stage), at.phase ^ 1)) {
    }
  }
  PORTILE_PTX void arm(const stage_place& at, std::uint32_t bytes) const {
    ptx::mbarrier_arrive_expect_tx(full(at.stage), bytes);
  }
  PORTILE_PTX void wait_full(const stage_place& at) const {
    while (!ptx::mbarrier_try_wait(full(at.stage), at.phase)) {
    }
  }
  /// By all lanes of a consumer warp: one arrival at each of the first `blocks` blocks of the cluster.
  PORTILE_PTX void release(int stage, int lane, int blocks) const {
    if (blocks == 1) {
      if (lane == 0) ptx::mbarrier_arrive(empty(stage));
    } else if (lane < blocks) {
      ptx::mbarrier_arrive_cluster(ptx::map_shared(empty(stage), lane));
    }
  }
};

}  // namespace portile::cuda
