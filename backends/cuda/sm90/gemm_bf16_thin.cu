#include "backends/cuda/sm90/gemm_launch.hpp"

namespace portile::cuda::sm90 {

gemm_kernel find_bf16_thin(bool grouped, int tile_m, int tile_n) {
  if (grouped) return nullptr;
  return find_nt<tile_shape<ptx::wgmma_type::bf16, 64, 96>, tile_shape<ptx::wgmma_type::bf16, 64, 64>>(
      tile_m, tile_n);
}

}  // namespace portile::cuda::sm90
