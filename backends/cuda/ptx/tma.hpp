#pragma once
// The bulk tensor copy engine. Coordinates are in elements, the contiguous dimension first.
#include <cuda.h>

#include "backends/cuda/ptx/arch.hpp"

namespace portile::cuda::ptx {

// prefetch.tensormap [map];                                                               PTX 8.0, sm_90
PORTILE_PTX void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// createpolicy.fractional.L2::evict_*.b64 policy, 1.0;                                    PTX 7.4, sm_80
/// How long the L2 cache is to keep what a copy reads.
PORTILE_PTX std::uint64_t policy_evict_first() {
  std::uint64_t p;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  return p;
}
PORTILE_PTX std::uint64_t policy_evict_last() {
  std::uint64_t p;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
  return p;
}

// cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes
//   [dst], [map, {x, y, z}], [bar];                                                       PTX 8.0, sm_90
PORTILE_PTX void tma_load(std::uint32_t to, const CUtensorMap* map, std::uint32_t bar, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint
//   [dst], [map, {x, y, z}], [bar], policy;                                               PTX 8.0, sm_90
PORTILE_PTX void tma_load(std::uint32_t to, const CUtensorMap* map, std::uint32_t bar, int x, int y, int z,
                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

// ... .multicast::cluster [dst], [map, {x, y, z}], [bar], mask;                           PTX 8.0, sm_90
/// To the same place, and to the barrier at the same place, of every block whose bit is set in the mask.
PORTILE_PTX void tma_load_multicast(std::uint32_t to, const CUtensorMap* map, std::uint32_t bar, int x, int y,
                                    int z, std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"(mask)
      : "memory");
}

// cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [map, {x, y, z}], [src];          PTX 8.0, sm_90
PORTILE_PTX void tma_store(const CUtensorMap* map, std::uint32_t from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(from), "r"(x), "r"(y), "r"(z)
               : "memory");
}

// cp.async.bulk.commit_group;                                                             PTX 8.0, sm_90
PORTILE_PTX void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// cp.async.bulk.wait_group.read n;                                                        PTX 8.0, sm_90
/// Until all but the newest `Pending` groups of this thread have read their shared memory.
template <int Pending>
PORTILE_PTX void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// fence.proxy.async.shared::cta;                                                          PTX 8.0, sm_90
/// Ordinary writes to shared memory before it are seen by the copy engine and the tensor cores.
PORTILE_PTX void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace portile::cuda::ptx
