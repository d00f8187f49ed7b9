#include "backends/gpu/gemm/grouped_nt.hpp"

namespace portile::gpu {
namespace {

/// Reports the experts whose segments break a rule: a wave an expert.
struct segment_report {
  static constexpr int threads = 128;
  struct params {
    expert_rows rows_of;
    std::uint64_t* trap;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const expert_rows& r = p.rows_of;
    const std::int64_t step = block.grid() * Block::num_waves;
    for (std::int64_t e = block.index() * Block::num_waves + block.wave(); e < r.experts; e += step) {
      if (r.masked) {
        if (block.lane() == 0 && (r.masked[e] < 0 || r.masked[e] > r.rows))
          raise_trap(p.trap, gemm::rule_masked, e);
        continue;
      }
      if (block.lane() == 0) {
        if (r.start[e] < 0 || r.start[e] > r.end[e] || r.end[e] > r.rows)
          raise_trap(p.trap, gemm::rule_segment, e);
        if (r.live && (r.live[e] < 0 || r.live[e] > std::int64_t{r.end[e]} - r.start[e]))
          raise_trap(p.trap, gemm::rule_live, e);
      }
      const expert_rows::range mine = r(e);
      bool overlaps = false;
      for (std::int64_t other = block.lane(); other < e; other += Block::wave_size)
        overlaps |= r(other).meets(mine);
      if (block.ballot(overlaps) != 0 && block.lane() == 0) raise_trap(p.trap, gemm::rule_overlap, e);
    }
  }
};

}  // namespace

void report_segments(const context& c, const expert_rows& rows_of) {
  if (!c.prepare && !c.call.trap) return;
  constexpr int threads = segment_report::threads;
  gpu::launch<segment_report>(c, numeric::ceil_div(rows_of.experts, threads / c.call.device->wave_size), 0,
                              {rows_of, c.call.trap});
}

extern const portile_implementation gemm_grouped_nt_simt;
const portile_implementation gemm_grouped_nt_simt = make_simt<gemm::grouped_nt, grouped_nt_by<nt_product>>();

}  // namespace portile::gpu
