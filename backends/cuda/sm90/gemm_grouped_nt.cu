#include <portile/kernels/gemm/grouped_nt.hpp>

#include "backends/cuda/sm90/gemm_launch.hpp"

namespace portile::cuda::sm90 {
namespace {

struct grouped_nt_sm90 {
  static plugin::verdict supports(const portile_device_info& device, const gemm::grouped_nt& p) {
    std::string reason = device_refusal(device);
    if (reason.empty() && (p.b.dtype == dtype::e2m1x2 || p.b.dtype == dtype::f32))
      reason = "b = " + p.b.text() + ": no kernel for these factors";
    if (reason.empty() && p.a.extent(p.a.rank - 1) == 0) reason = "K = 0: nothing to multiply";
    if (reason.empty() && p.b.extent(0) > max_experts)
      reason = "b = " + p.b.text() + ": over " + std::to_string(max_experts) + " experts";
    if (reason.empty() && !empty(p)) {
      reason = copy_refusal("a", p.a);
      if (reason.empty()) reason = copy_refusal("b", p.b);
      for (int i = 0; i < p.out.rank; ++i)
        if (reason.empty() && p.out.extent(i) > 0x7ffffff0)
          reason = "out = " + p.out.text() + ": an extent over 2^31";
      // Row tiles of all experts are counted in 32 bits.
      if (reason.empty() && p.a.rank == 3 && p.a.extent(0) * p.a.extent(1) > 0x7ffffff0)
        reason = "a = " + p.a.text() + ": over 2^31 rows";
    }
    return reason.empty() ? plugin::accept() : plugin::refuse(std::move(reason));
  }
  static std::uint64_t workspace(const portile_device_info& device, const gemm::grouped_nt& p) {
    portile_launch l{};
    l.device = &device;
    start({l, true}, p);
    return 0;
  }
  static void launch(const portile_launch& l, const gemm::grouped_nt& p) { start({l, false}, p); }

 private:
  static bool empty(const gemm::grouped_nt& p) {
    for (int i = 0; i < p.out.rank; ++i)
      if (p.out.extent(i) == 0) return true;
    return p.b.extent(0) == 0;
  }
  static gemm_config choose(const gemm::grouped_nt& p) {
    const bool masked = p.a.rank == 3, quantised = p.a.dtype == dtype::e4m3;
    const std::int64_t rows = masked ? p.a.extent(1) : p.a.extent(0) / p.b.extent(0);
    gemm_config c;
    c.tile_m = rows <= 64 ? 64 : 128;
    c.tile_n = quantised ? 128 : 256;
    c.staging = quantised ? 2 : 1;
    // Two tiles beside each other have the same rows whatever the experts.
    c.blocks = p.out.extent(p.out.rank - 1) > c.tile_n ? 2 : 1;
    c.use = c.blocks == 2 ? cluster_use::same_rows : cluster_use::none;
    constexpr int table = 12 * (max_experts + 1) + 64;
    c.stages = 1;
    while (c.stages < gemm_config::max_stages) {
      ++c.stages;
      if (c.shared_bytes() + table > gemm_config::shared_limit) {
        --c.stages;
        break;
      }
    }
    c.band = 16;
    return c;
  }
  static void start(const gpu::context& c, const gemm::grouped_nt& p) {
    const bool masked = p.a.rank == 3;
    const std::int64_t experts = p.b.extent(0);
    const gpu::expert_rows rows_of = gpu::make_expert_rows(
        p.expert_start, p.expert_end, p.num_live_per_expert, p.masked_m, experts, p.a.extent(masked ? 1 : 0));
    gpu::report_segments(c, rows_of);
    if (empty(p)) return;
    const gemm_type type = p.a.dtype == dtype::bf16 ? gemm_type::bf16 : gemm_type::e4m3;
    const gemm_config config = choose(p);
    gemm_params q{};
    if (!c.prepare) {
      q = make_params(p.a, p.b, p.out, p.accumulate, type, config);
      q.rows_of = rows_of;
      if (type == gemm_type::e4m3) {
        const auto scales = [](const tensor& t) {
          gpu::scale_reader r;
          r.data = t.data;
          r.type = t.dtype;
          r.row_stride = t.stride(t.rank - 2);
          r.col_stride = t.stride(t.rank - 1);
          return r;
        };
        const auto batch = [](const tensor& t) { return t.rank == 3 ? t.stride(0) * size_of(t.dtype) : 0; };
        q.a_sf = scales(p.a_sf);
        q.b_sf = scales(p.b_sf);
        q.a_sf_bytes = batch(p.a_sf);
        q.b_sf_bytes = batch(p.b_sf);
      }
    }
    // Only the device knows how many tiles there are; this many at most.
    const std::int64_t whole = numeric::ceil_div(rows_of.rows, std::int64_t{config.tile_m});
    const std::int64_t row_tiles = masked ? experts * whole : whole + experts;
    launch_gemm(c, true, type, config, row_tiles * q.col_tiles, q);
  }
};

}  // namespace
}  // namespace portile::cuda::sm90

namespace portile::gpu {
extern const portile_implementation gemm_grouped_nt_sm90;
const portile_implementation gemm_grouped_nt_sm90 =
    plugin::make_implementation<gemm::grouped_nt, cuda::sm90::grouped_nt_sm90>("cuda.sm90", device_kind::cuda,
                                                                               "sm_90a");
}  // namespace portile::gpu
