#include "backends/cuda/sm90/gemm_launch.hpp"

namespace portile::cuda::sm90 {

gemm_kernel find_tf32(bool grouped, int tile_m, int tile_n) {
  if (grouped) return nullptr;
  return find_nt<tile_shape<ptx::wgmma_type::tf32, 128, 256>, tile_shape<ptx::wgmma_type::tf32, 128, 192>,
                 tile_shape<ptx::wgmma_type::tf32, 128, 128>, tile_shape<ptx::wgmma_type::tf32, 64, 128>,
                 tile_shape<ptx::wgmma_type::tf32, 64, 64>>(tile_m, tile_n);
}

}  // namespace portile::cuda::sm90
