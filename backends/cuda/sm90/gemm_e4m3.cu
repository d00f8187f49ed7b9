#include "backends/cuda/sm90/gemm_launch.hpp"

namespace portile::cuda::sm90 {

gemm_kernel find_e4m3(bool grouped, int tile_m, int tile_n) {
  if (grouped)
    return find_grouped_nt<tile_shape<ptx::wgmma_type::e4m3, 128, 128>,
                           tile_shape<ptx::wgmma_type::e4m3, 64, 128>>(tile_m, tile_n);
  return find_nt<tile_shape<ptx::wgmma_type::e4m3, 128, 128>, tile_shape<ptx::wgmma_type::e4m3, 64, 128>,
                 tile_shape<ptx::wgmma_type::e4m3, 64, 64>>(tile_m, tile_n);
}

}  // namespace portile::cuda::sm90
