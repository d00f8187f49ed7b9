#include <portile/kernels/gemm/nt.hpp>

#include "backends/cuda/sm90/gemm_launch.hpp"

namespace portile::cuda::sm90 {
namespace {

/// Rows of f32 rounded to tf32, at a pitch that the copy engine takes.
__global__ void __launch_bounds__(256)
    round_rows(const float* from, std::int64_t stride, float* to, gpu::divider quads, std::int64_t count,
               std::int64_t cols, bool aligned, bool truncate) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * 256) {
    const std::int64_t row = quads.quotient(i), col = (i - row * quads.value()) * 4;
    const float* start = from + row * stride + col;
    float v[4] = {};
    if (aligned && col + 4 <= cols) {
      const float4 f = *reinterpret_cast<const float4*>(start);
      v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (col + j < cols) v[j] = start[j];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      v[j] = truncate ? numeric::to_tf32_truncate(v[j]) : numeric::to_tf32_nearest(v[j]);
      // A NaN keeps a bit that the tensor cores see.
      if (numeric::is_nan(v[j])) v[j] = numeric::bits_float(0x7FC00000u);
    }
    reinterpret_cast<float4*>(to)[i] = make_float4(v[0], v[1], v[2], v[3]);
  }
}

constexpr std::int64_t alignment = 256;

/// f32 factors are copied first where rounding is asked for, or where the copy engine cannot take them.
bool needs_copy(const gemm::nt& p, const tensor& t) {
  return t.dtype == dtype::f32 && (p.tf32_rounding != "truncate" || !copy_refusal("", t).empty());
}
std::int64_t copy_pitch(const tensor& t) { return numeric::align_up(t.extent(1), std::int64_t{4}); }
std::int64_t copy_bytes(const gemm::nt& p, const tensor& t) {
  return needs_copy(p, t) ? numeric::align_up(t.extent(0) * copy_pitch(t) * 4, alignment) : 0;
}

tensor copy_rows(const gpu::context& c, const gemm::nt& p, const tensor& t, void* to) {
  if (!needs_copy(p, t)) return t;
  tensor copied = t;
  copied.data = to;
  copied.strides[0] = copy_pitch(t);
  const void* const entry = reinterpret_cast<const void*>(&round_rows);
  const gpu::current_device guard(c.call.device->ordinal);
  if (c.prepare) {
    cudaFuncAttributes attributes;
    gpu::require_success(cudaFuncGetAttributes(&attributes, entry), "load a kernel");
    return copied;
  }
  const auto* from = static_cast<const float*>(t.data);
  std::int64_t stride = t.stride(0), cols = t.extent(1), count = t.extent(0) * (copy_pitch(t) / 4);
  auto* out = static_cast<float*>(to);
  gpu::divider quads(copy_pitch(t) / 4, count);
  bool aligned = reinterpret_cast<std::uintptr_t>(from) % 16 == 0 && (stride % 4 == 0 || t.extent(0) == 1);
  bool truncate = p.tf32_rounding == "truncate";
  std::int64_t blocks = std::min<std::int64_t>(numeric::ceil_div(count, std::int64_t{256}), 0x7fffffff);
  if (c.call.num_sms > 0) blocks = std::min<std::int64_t>(blocks, std::int64_t{c.call.num_sms} * 8);
  if (c.call.max_blocks > 0) blocks = std::min(blocks, c.call.max_blocks);
  void* arguments[] = {&from, &stride, &out, &quads, &count, &cols, &aligned, &truncate};
  gpu::require_success(cudaLaunchKernel(entry, dim3(static_cast<unsigned>(blocks)), dim3(256), arguments, 0,
                                        static_cast<cudaStream_t>(c.call.stream)),
                       "launch");
  return copied;
}

struct nt_sm90 {
  static plugin::verdict supports(const portile_device_info& device, const gemm::nt& p) {
    std::string reason = device_refusal(device);
    if (reason.empty() && p.b.dtype == dtype::e2m1x2)
      reason = "b = " + p.b.text() + ": no kernel for e2m1x2 factors";
    if (reason.empty() && p.a.extent(1) == 0) reason = "K = 0: nothing to multiply";
    if (reason.empty() && p.out.extent(0) != 0 && p.out.extent(1) != 0) {
      if (p.a.dtype == dtype::f32) {
        for (const tensor* t : {&p.a, &p.b})
          for (int i = 0; i < 2; ++i)
            if (t->extent(i) > 0x7ffffff0)
              reason = "a = " + p.a.text() + ", b = " + p.b.text() + ": an extent over 2^31";
      } else {
        reason = copy_refusal("a", p.a);
        if (reason.empty()) reason = copy_refusal("b", p.b);
      }
      for (int i = 0; i < 2; ++i)
        if (reason.empty() && p.out.extent(i) > 0x7ffffff0)
          reason = "out = " + p.out.text() + ": an extent over 2^31";
    }
    return reason.empty() ? plugin::accept() : plugin::refuse(std::move(reason));
  }
  static std::uint64_t workspace(const portile_device_info& device, const gemm::nt& p) {
    portile_launch l{};
    l.device = &device;
    start({l, true}, p);
    return static_cast<std::uint64_t>(copy_bytes(p, p.a) + copy_bytes(p, p.b));
  }
  static void launch(const portile_launch& l, const gemm::nt& p) { start({l, false}, p); }

 private:
  static void start(const gpu::context& c, const gemm::nt& p) {
    if (p.out.extent(0) == 0 || p.out.extent(1) == 0) return;
    auto* const space = static_cast<char*>(c.call.workspace);
    const tensor a = copy_rows(c, p, p.a, space), b = copy_rows(c, p, p.b, space + copy_bytes(p, p.a));
    gemm_shape s;
    s.m = p.out.extent(0), s.n = p.out.extent(1), s.k = p.a.extent(1);
    s.type = a.dtype == dtype::bf16  ? gemm_type::bf16
             : a.dtype == dtype::f32 ? gemm_type::tf32
                                     : gemm_type::e4m3;
    s.out_bytes = static_cast<int>(size_of(p.out.dtype));
    s.num_sms = c.call.device->num_sms;
    const gemm_config config = pick_cached(s);
    gemm_params q{};
    if (!c.prepare) {
      q = make_params(a, b, p.out, p.accumulate, s.type, config);
      q.stream_b = q.row_tiles == 1;
      if (s.type == gemm_type::e4m3) {
        q.a_sf = gpu::scale_reader(p.a_sf, false);
        q.b_sf = gpu::scale_reader(p.b_sf, false);
      }
    }
    launch_gemm(c, false, s.type, config, std::int64_t{q.row_tiles} * q.col_tiles, q);
  }
};

}  // namespace
}  // namespace portile::cuda::sm90

namespace portile::gpu {
extern const portile_implementation gemm_nt_sm90;
const portile_implementation gemm_nt_sm90 =
    plugin::make_implementation<gemm::nt, cuda::sm90::nt_sm90>("cuda.sm90", device_kind::cuda, "sm_90a");
}  // namespace portile::gpu
