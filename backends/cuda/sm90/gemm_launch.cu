#include "backends/cuda/sm90/gemm_launch.hpp"

#include <algorithm>
#include <array>

namespace portile::cuda::sm90 {
namespace {

using encode_function = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                     const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                     CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                     CUtensorMapFloatOOBfill);

/// libcuda's function, found at run time: the plug-in loads without a driver.
encode_function encode() {
  static const encode_function found = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result);
    if (e != cudaSuccess || result != cudaDriverEntryPointSuccess) (void)cudaGetLastError(), f = nullptr;
    return reinterpret_cast<encode_function>(f);
  }();
  if (!found) throw error(status_code::unsupported, "the driver has no cuTensorMapEncodeTiled");
  return found;
}

std::int64_t rows_of(const tensor& t) { return t.extent(t.rank - 2); }
std::int64_t cols_of(const tensor& t) { return t.extent(t.rank - 1); }
std::int64_t pitch_bytes(const tensor& t) {
  const std::int64_t size = size_of(t.dtype);
  // Of a single row it does not matter.
  return rows_of(t) > 1 ? t.stride(t.rank - 2) * size
                        : numeric::align_up(cols_of(t) * size, std::int64_t{16});
}
std::int64_t batch_bytes(const tensor& t) {
  return t.rank == 3 && t.extent(0) > 1 ? t.stride(0) * size_of(t.dtype) : pitch_bytes(t) * rows_of(t);
}

/// Boxes of 128 bytes by `box_rows` rows with the 128-byte swizzle, of a matrix or a batch of them.
CUtensorMap make_map(const tensor& t, int box_rows) {
  const CUtensorMapDataType type = t.dtype == dtype::bf16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : t.dtype == dtype::f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                           : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const auto u64 = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t extents[] = {u64(cols_of(t)), u64(rows_of(t)), u64(t.rank == 3 ? t.extent(0) : 1)};
  const cuuint64_t strides[] = {u64(pitch_bytes(t)), u64(batch_bytes(t))};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / size_of(t.dtype)),
                            static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult r = encode()(&map, type, 3, t.data, extents, strides, box, steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    throw error(status_code::internal,
                "cuTensorMapEncodeTiled: " + t.text() + ": error " + std::to_string(r));
  return map;
}

gemm_kernel find(bool grouped, gemm_type type, const gemm_config& c) {
  if (type == gemm_type::tf32) return find_tf32(grouped, c.tile_m, c.tile_n);
  if (type == gemm_type::e4m3) return find_e4m3(grouped, c.tile_m, c.tile_n);
  for (const auto f : {&find_bf16_wide, &find_bf16_middle, &find_bf16_narrow, &find_bf16_thin})
    if (const gemm_kernel k = f(grouped, c.tile_m, c.tile_n)) return k;
  return nullptr;
}

}  // namespace

std::string device_refusal(const portile_device_info& device) {
  if (std::string_view(device.arch) == "sm_90") return {};
  return std::string("compiled for sm_90a alone, the device is ") + device.arch;
}

std::string copy_refusal(const char* name, const tensor& t) {
  const std::string what = std::string(name) + " = " + t.text() + ": ";
  for (int i = 0; i < t.rank; ++i)
    if (t.extent(i) > 0x7fffffff) return what + "the copy engine counts to 2147483647";
  if (reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0)
    return what + "its address is no multiple of 16 bytes";
  const auto bad = [](std::int64_t bytes) { return bytes % 16 != 0 || bytes >= std::int64_t{1} << 40; };
  if (bad(pitch_bytes(t)) || (t.rank == 3 && bad(batch_bytes(t))))
    return what + "a row pitch is no multiple of 16 bytes, or over 2^40";
  if (pitch_bytes(t) < cols_of(t) * size_of(t.dtype) || batch_bytes(t) < pitch_bytes(t))
    return what + "rows overlap";
  return {};
}

gemm_params make_params(const tensor& a, const tensor& b, const tensor& out, bool accumulate, gemm_type type,
                        const gemm_config& c) {
  gemm_params p{};
  p.a = make_map(a, c.tile_m / (c.use == cluster_use::same_rows ? c.blocks : 1));
  p.b = make_map(b, c.tile_n / (c.use == cluster_use::same_columns ? c.blocks : 1));
  // The copy engine stores whole units of 16 bytes: a row must end with one.
  p.copy_out =
      copy_refusal("out", out).empty() && cols_of(out) * size_of(out.dtype) % 16 == 0 && c.staging > 0;
  if (p.copy_out) p.out = make_map(out, 64);
  p.out_data = out.data;
  p.out_stride = out.stride(out.rank - 2);
  p.out_batch = out.rank == 3 ? out.stride(0) : 0;
  p.m = static_cast<int>(rows_of(out));
  p.n = static_cast<int>(cols_of(out));
  gemm_shape s;
  s.type = type;
  p.k_steps = static_cast<int>(numeric::ceil_div(cols_of(a), std::int64_t{s.step()}));
  const auto tiles = [](std::int64_t extent, int tile) {
    return static_cast<int>(numeric::ceil_div(extent, std::int64_t{tile}));
  };
  p.col_tiles = tiles(p.n, c.tile_n * (c.use == cluster_use::same_rows ? c.blocks : 1));
  p.row_tiles = tiles(p.m, c.tile_m * (c.use == cluster_use::same_columns ? c.blocks : 1));
  p.stages = c.stages;
  p.staging = c.staging;
  p.blocks = c.blocks;
  p.band = c.band;
  p.use = c.use;
  p.out_f32 = out.dtype == dtype::f32;
  p.accumulate = accumulate;
  return p;
}

gemm_config pick_cached(const gemm_shape& s) {
  struct entry {
    gemm_shape shape;
    gemm_config config;
  };
  static thread_local std::array<entry, 32> entries{};
  const auto hash = static_cast<std::uint64_t>(s.m * 31 + s.n * 131 + s.k * 8191 + static_cast<int>(s.type));
  entry& e = entries[(hash ^ hash >> 7) % entries.size()];
  if (!(e.shape == s)) e = {s, pick(s)};
  return e.config;
}

void launch_gemm(const gpu::context& c, bool grouped, gemm_type type, const gemm_config& config,
                 std::int64_t clusters, const gemm_params& p) {
  const gemm_kernel kernel = find(grouped, type, config);
  if (!kernel) throw error(status_code::internal, "no kernel for " + config.text());
  const void* const entry = reinterpret_cast<const void*>(kernel);
  const portile_launch& l = c.call;
  const gpu::current_device guard(l.device->ordinal);
  if (c.prepare) {
    // Loads the kernel: a load during a stream capture would synchronise.
    cudaFuncAttributes attributes;
    gpu::require_success(cudaFuncGetAttributes(&attributes, entry), "load a kernel");
    gpu::require_success(
        cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             gemm_config::shared_limit - static_cast<int>(attributes.sharedSizeBytes)),
        "shared memory of a kernel");
    return;
  }
  std::int64_t blocks = l.num_sms > 0 ? std::min(l.num_sms, l.device->num_sms) : l.device->num_sms;
  if (l.max_blocks > 0) blocks = std::min(blocks, l.max_blocks);
  clusters = std::min(clusters, std::max<std::int64_t>(1, blocks / config.blocks));

  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (config.blocks > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(config.blocks);
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (l.pdl) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(clusters * config.blocks));
  launch.blockDim = dim3(gemm_threads);
  launch.dynamicSmemBytes = static_cast<std::size_t>(config.shared_bytes());
  launch.stream = static_cast<cudaStream_t>(l.stream);
  launch.attrs = attributes;
  launch.numAttrs = count;
  gemm_params copy = p;
  void* arguments[] = {&copy};
  gpu::require_success(cudaLaunchKernelExC(&launch, entry, arguments), "launch");
}

}  // namespace portile::cuda::sm90
