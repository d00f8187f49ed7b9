#include <portile/kernels/moe/gate.hpp>
#include <portile/kernels/moe/top2_sum_gate.hpp>

namespace portile::moe {
namespace {

bool check_groups(checker& c, const top2_sum_gate& p, std::int64_t num_experts) {
  const std::int64_t g = p.num_groups, kept = p.num_topk_groups;
  if (!c.need(g >= 0 && (g == 0) == (kept == 0), "num_groups", g,
              "must be positive exactly when num_topk_groups is") ||
      !c.need(kept >= 0 && kept <= g, "num_topk_groups", kept,
              "must be 0 to num_groups = " + std::to_string(g)) ||
      !c.need(g == 0 || num_experts % g == 0, "num_groups", g,
              "must divide num_experts = " + std::to_string(num_experts)))
    return false;
  if (g == kept) return true;
  const std::int64_t size = num_experts / g;
  return c.need(g <= 32, "num_groups", g, "must be at most 32 where groups are dropped") &&
         c.need(size >= 2 && size <= 32, "num_experts / num_groups", size,
                "must be 2 to 32 where groups are dropped") &&
         c.need(p.num_topk <= kept * size, "num_topk", p.num_topk,
                "must be at most the experts of the kept groups, " + std::to_string(kept * size));
}

bool check_shared(checker& c, const top2_sum_gate& p, std::int64_t num_experts, std::int64_t extra_columns) {
  const std::int64_t s = num_shared_slots(p), k = p.num_topk;
  if (s == 0) return true;
  return c.need(k % s == 0, "num_topk", k,
                "must be a multiple of num_shared_experts = " + std::to_string(s)) &&
         c.need_multiple("num_experts", num_experts, k / s) &&
         c.need(s <= extra_columns, "num_shared_experts", s,
                "needs a to_physical_map with that many extra columns");
}

}  // namespace

void top2_sum_gate::check(checker& c) const {
  const std::int64_t e = c.dim("num_experts");
  const std::int64_t extra = to_physical_map.defined() ? c.dim("map_columns") - 1 : 0;
  c.need(scoring_from(scoring_func).has_value(), "scoring_func", scoring_func,
         "must be sigmoid, sqrtsoftplus or softmax");
  c.need(extra >= 0, "map_columns", extra + 1, "must be at least 1");
  if (!check_gate(c, *this) || !check_groups(c, *this, e) || !check_shared(c, *this, e, extra)) return;
  c.need(num_ep_ranks >= 1, "num_ep_ranks", num_ep_ranks, "must be at least 1");
  c.need(num_ep_ranks < 1 || (e + extra) % num_ep_ranks == 0, "num_ep_ranks", num_ep_ranks,
         "must divide the physical experts, num_experts + map columns - 1 = " + std::to_string(e + extra));
  c.need(num_tp_ranks >= 1, "num_tp_ranks", num_tp_ranks, "must be at least 1");
  c.need(tp_rank >= 0 && tp_rank < num_tp_ranks, "tp_rank", tp_rank, "must be 0 to num_tp_ranks - 1");
}

void top2_sum_gate::infer(inference& i) const {
  i.out("topk_idx", dtype::i64);
  i.out("topk_weights", dtype::f32);
  if (unmapped_topk_idx.defined()) i.out("unmapped_topk_idx", dtype::i64);
}

}  // namespace portile::moe
