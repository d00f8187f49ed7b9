#pragma once
// Rules that the gates share. Host only.
#include <cctype>
#include <optional>
#include <string>

#include <portile/core/check.hpp>

namespace portile::moe {

enum class scoring { sigmoid, sqrtsoftplus, softmax };

/// Upper and lower case are the same.
inline std::optional<scoring> scoring_from(std::string_view name) {
  std::string lower;
  for (char ch : name) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
  if (lower == "sigmoid") return scoring::sigmoid;
  if (lower == "sqrtsoftplus") return scoring::sqrtsoftplus;
  if (lower == "softmax") return scoring::softmax;
  return {};
}

/// Shared experts that take slots of their own, after the routed ones.
std::int64_t num_shared_slots(const auto& p) { return p.use_shared_as_routed ? p.num_shared_experts : 0; }

/// Slots, experts, shared experts, and which optional tensors go together.
bool check_gate(checker& c, const auto& p) {
  const std::int64_t e = c.dim("num_experts"), k = p.num_topk, s = num_shared_slots(p);
  return c.need(k >= 1, "num_topk", k, "must be at least 1") &&
         c.need(k <= e, "num_topk", k, "must be at most num_experts = " + std::to_string(e)) &&
         c.need(k <= 32, "num_topk", k, "must be at most 32") && c.need_multiple("num_experts", e, 4) &&
         c.need(!p.use_shared_as_routed || s == 1 || s == 2, "num_shared_experts", p.num_shared_experts,
                "must be 1 or 2 with use_shared_as_routed") &&
         c.need(k + s <= 32, "num_topk + num_shared_experts", k + s, "must be at most 32") &&
         c.need(p.ep_rank >= 0, "ep_rank", p.ep_rank, "must not be negative") &&
         c.need_both_or_none("to_physical_map", p.to_physical_map.defined(), "logical_count",
                             p.logical_count.defined()) &&
         c.need(!p.fix_routing_mask.defined() || p.unmapped_topk_idx.defined(), "unmapped_topk_idx", "absent",
                "is required with fix_routing_mask: it holds the fixed ids") &&
         c.need(!p.mask.defined() || p.mask.numel() == c.dim("num_tokens"), "mask", p.mask,
                "must have num_tokens = " + std::to_string(c.dim("num_tokens")) + " elements");
}

}  // namespace portile::moe
