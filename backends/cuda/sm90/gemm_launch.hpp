#pragma once
// From a problem to a launch of a kernel of gemm_kernel.hpp. Host only.
#include <cuda.h>
#include <cuda_runtime.h>

#include <portile/core/tensor.hpp>

#include "backends/cuda/sm90/gemm_kernel.hpp"

namespace portile::cuda::sm90 {

using gemm_kernel = void (*)(const gemm_params);

/// The kernel of a tile; null where there is none. A source for each of these, so that none compiles long.
gemm_kernel find_bf16_wide(bool grouped, int tile_m, int tile_n);
gemm_kernel find_bf16_middle(bool grouped, int tile_m, int tile_n);
gemm_kernel find_bf16_narrow(bool grouped, int tile_m, int tile_n);
gemm_kernel find_bf16_thin(bool grouped, int tile_m, int tile_n);
gemm_kernel find_tf32(bool grouped, int tile_m, int tile_n);
gemm_kernel find_e4m3(bool grouped, int tile_m, int tile_n);

/// Finds a kernel among the listed shapes.
template <class... Shapes>
gemm_kernel find_nt(int tile_m, int tile_n) {
  gemm_kernel found = nullptr;
  ((Shapes::tile_m == tile_m && Shapes::tile_n == tile_n ? void(found = &gemm_nt_kernel<Shapes>) : void()),
   ...);
  return found;
}
template <class... Shapes>
gemm_kernel find_grouped_nt(int tile_m, int tile_n) {
  gemm_kernel found = nullptr;
  ((Shapes::tile_m == tile_m && Shapes::tile_n == tile_n ? void(found = &gemm_grouped_nt_kernel<Shapes>)
                                                         : void()),
   ...);
  return found;
}

/// Why this device or these factors are not for the kernels here; empty when they are.
std::string device_refusal(const portile_device_info& device);
std::string copy_refusal(const char* name, const tensor& t);

/// Everything of the parameters that follows from the problem's tensors and the configuration.
gemm_params make_params(const tensor& a, const tensor& b, const tensor& out, bool accumulate, gemm_type type,
                        const gemm_config& config);

/// `pick`, remembered for each thread.
gemm_config pick_cached(const gemm_shape& s);

/// Loads the kernel (prepare), or starts it on as many of `clusters` as fit the device.
void launch_gemm(const gpu::context& c, bool grouped, gemm_type type, const gemm_config& config,
                 std::int64_t clusters, const gemm_params& p);

}  // namespace portile::cuda::sm90
