#pragma once
// mbarrier: a 64-bit object in shared memory that counts arrivals and bytes. Phases alternate in parity 0, 1,
// 0 ...
#include "backends/cuda/ptx/arch.hpp"

namespace portile::cuda::ptx {

// mbarrier.init.shared::cta.b64 [addr], count;                                            PTX 7.0, sm_80
PORTILE_PTX void mbarrier_init(std::uint32_t bar, std::uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

// mbarrier.arrive.expect_tx.shared::cta.b64 _, [addr], tx_count;                          PTX 8.0, sm_90
PORTILE_PTX void mbarrier_arrive_expect_tx(std::uint32_t bar, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// mbarrier.arrive.shared::cta.b64 _, [addr];                                              PTX 7.8, sm_80
PORTILE_PTX void mbarrier_arrive(std::uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// mbarrier.arrive.shared::cluster.b64 _, [addr];                                          PTX 8.0, sm_90
/// `bar`: an address in the window of the cluster, from map_shared. Orders nothing beyond this block: the
/// form with .release.cluster waits for all of the thread's memory traffic, which a pipeline of asynchronous
/// copies does not need.
PORTILE_PTX void mbarrier_arrive_cluster(std::uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

// mbarrier.try_wait.parity.shared::cta.b64 p, [addr], parity;                             PTX 7.8, sm_90
PORTILE_PTX bool mbarrier_try_wait(std::uint32_t bar, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

// fence.mbarrier_init.release.cluster;                                                    PTX 8.0, sm_90
PORTILE_PTX void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

}  // namespace portile::cuda::ptx
