#include "backends/cuda/sm90/gemm_launch.hpp"

namespace portile::cuda::sm90 {

gemm_kernel find_bf16_narrow(bool grouped, int tile_m, int tile_n) {
  if (grouped) return nullptr;
  return find_nt<tile_shape<ptx::wgmma_type::bf16, 128, 128>, tile_shape<ptx::wgmma_type::bf16, 128, 64>,
                 tile_shape<ptx::wgmma_type::bf16, 64, 128>>(tile_m, tile_n);
}

}  // namespace portile::cuda::sm90
