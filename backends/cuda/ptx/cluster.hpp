#pragma once
// Clusters of blocks, barriers of warps, registers of warpgroups.
#include "backends/cuda/ptx/arch.hpp"

namespace portile::cuda::ptx {

// mov.u32 r, %cluster_ctarank;                                                            PTX 7.8, sm_90
PORTILE_PTX std::uint32_t cluster_rank() {
  std::uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

// mapa.shared::cluster.u32 r, addr, rank;                                                 PTX 7.8, sm_90
/// The same place in the shared memory of another block of the cluster.
PORTILE_PTX std::uint32_t map_shared(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}

// barrier.cluster.arrive.release; barrier.cluster.wait.acquire;                           PTX 7.8, sm_90
PORTILE_PTX void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
PORTILE_PTX void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// barrier.cluster.arrive.relaxed;                                                         PTX 8.0, sm_90
/// Orders no memory: barriers made visible by fence_mbarrier_init, or the end of a block.
PORTILE_PTX void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }

// ld.shared::cluster.v4.f32 {...}, [addr];                                                PTX 7.8, sm_90
PORTILE_PTX float4 load_cluster_f32x4(std::uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// st.shared.v4.f32 [addr], {...};                                                         PTX 1.0
PORTILE_PTX void store_shared_f32x4(std::uint32_t address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

// st.shared.v2.f32 [addr], {...};                                                         PTX 1.0
PORTILE_PTX void store_shared_f32x2(std::uint32_t address, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}

// bar.sync id, threads;                                                                   PTX 1.0
PORTILE_PTX void named_barrier(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// bar.arrive id, threads;                                                                 PTX 1.0
PORTILE_PTX void named_arrive(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// setmaxnreg.inc/dec.sync.aligned.u32 n;                                                  PTX 8.0, sm_90a
template <int Registers>
PORTILE_PTX void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
PORTILE_PTX void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// stmatrix.sync.aligned.m8n8.x4.shared.b16 [addr], {...};                                 PTX 7.8, sm_90
PORTILE_PTX void store_matrix_x4(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                 std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

// cvt.rn.bf16x2.f32 d, high, low;                                                         PTX 7.0, sm_80
PORTILE_PTX std::uint32_t to_bf16x2(float low, float high) {
  std::uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// griddepcontrol.wait; griddepcontrol.launch_dependents;                                  PTX 7.8, sm_90
PORTILE_PTX void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
PORTILE_PTX void let_next_grid_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace portile::cuda::ptx
