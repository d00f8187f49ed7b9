#pragma once
// Instructions of these headers exist on sm_90a alone. A source that uses them for another architecture does
// not compile.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "backends/cuda/ptx: compile for sm_90a (-gencode arch=compute_90a,code=sm_90a)"
#endif

#include <cstdint>

#define PORTILE_PTX __device__ __forceinline__

namespace portile::cuda::ptx {

/// Address of shared memory as the instructions take it: in the window of this block.
PORTILE_PTX std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// mov.b32 d, d;                                                                           PTX 1.0
/// A value that the compiler holds in a register instead of computing it again.
PORTILE_PTX std::uint32_t keep(std::uint32_t x) {
  asm volatile("mov.b32 %0, %0;" : "+r"(x));
  return x;
}

}  // namespace portile::cuda::ptx
