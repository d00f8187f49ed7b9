#include <portile/kernels/moe/top2_sum_gate.hpp>

#include "backends/gpu/moe/gate.hpp"

namespace portile::gpu {
namespace {

struct top2_sum_gate_simt {
  static void launch(const context& c, const moe::top2_sum_gate& p) {
    gate_params q = common_gate_params(c, p);
    q.how = *moe::scoring_from(p.scoring_func);
    if (p.num_topk_groups != p.num_groups) {
      q.groups = static_cast<int>(p.num_groups);
      q.kept_groups = static_cast<int>(p.num_topk_groups);
      q.group_size = static_cast<int>(q.experts / p.num_groups);
    }
    // As many terms as there are experts must fit 62 bits.
    q.shift = 62;
    while (q.shift > 0 && (std::int64_t{1} << (62 - q.shift)) < q.experts) --q.shift;
    const std::int64_t extra = p.to_physical_map.defined() ? p.to_physical_map.extent(1) - 1 : 0;
    q.to_local = tensor_parallel_mask((q.experts + extra) / p.num_ep_ranks, p.tp_rank, p.num_tp_ranks);
    launch_gate<true>(c, q);
  }
};

}  // namespace

extern const portile_implementation moe_top2_sum_gate_simt;
const portile_implementation moe_top2_sum_gate_simt = make_simt<moe::top2_sum_gate, top2_sum_gate_simt>();

}  // namespace portile::gpu
