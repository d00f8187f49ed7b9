#include "backends/cuda/sm90/gemm_launch.hpp"

namespace portile::cuda::sm90 {

gemm_kernel find_bf16_wide(bool grouped, int tile_m, int tile_n) {
  if (grouped)
    return find_grouped_nt<tile_shape<ptx::wgmma_type::bf16, 128, 256>,
                           tile_shape<ptx::wgmma_type::bf16, 64, 256>>(tile_m, tile_n);
  return find_nt<tile_shape<ptx::wgmma_type::bf16, 128, 256>, tile_shape<ptx::wgmma_type::bf16, 64, 256>>(
      tile_m, tile_n);
}

}  // namespace portile::cuda::sm90
