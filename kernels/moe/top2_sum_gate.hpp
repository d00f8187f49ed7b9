#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// Routes each token to num_topk experts, best first, with weights; fp32. For a row of logits x:
///   s_e = score: sigmoid 1 / (1 + exp(-x)); sqrtsoftplus sqrt(x > 20 ? x : log1p(exp(x))); softmax exp(x -
///   max) / sum b_e = s_e + bias_e, for softmax x_e + bias_e: selects, never enters a weight groups: with
///   num_topk_groups < num_groups only the experts of the best groups take part. A group is a block of
///     num_experts / num_groups experts, its score the fp32 sum of its two largest b
///   selected: the num_topk largest b, best first, in the total order of moe.topk_gate
///   weight = (s / (1e-20 + s of slot 0 + s of slot 1 + ...)) * routed_scaling_factor
/// A selected expert whose score is NaN or infinite has weight 0 and is left out of the sum (only logits that
/// break the data rule give one). Per token, in this order: `mask` false gives ids -1 and weights 0 in every
/// slot, logits unseen; fix_routing_mask true takes the ids of unmapped_topk_idx instead of selecting, an id
/// out of range counting as -1 with weight 0. Otherwise the selected ids are stored in unmapped_topk_idx, if
/// given; -1 for masked tokens. use_shared_as_routed appends num_shared_experts slots with ids num_experts,
/// num_experts + 1 and weight 1. A map turns every slot's id into to_physical_map[id, (ep_rank + t * 23333)
/// mod logical_count[id]], 64-bit. Then always, with per = (num_experts + map columns - 1) / num_ep_ranks and
/// r = id / per: id = -1 where r mod num_tp_ranks is not tp_rank, else r / num_tp_ranks * per + id mod per.
/// The weights of slots that become -1 stay.
struct top2_sum_gate {
  static constexpr const char* name = "moe.top2_sum_gate";

  tensor logits{};
  tensor bias{};
  tensor mask{};
  tensor fix_routing_mask{};
  tensor to_physical_map{};
  tensor logical_count{};
  tensor unmapped_topk_idx{};
  tensor topk_idx{};
  tensor topk_weights{};
  std::int64_t num_topk = 0;
  std::int64_t num_topk_groups = 0;
  std::int64_t num_groups = 0;
  bool use_shared_as_routed = false;
  std::int64_t num_shared_experts = 0;
  double routed_scaling_factor = 1;
  std::int64_t ep_rank = 0;
  std::int64_t num_ep_ranks = 1;
  std::int64_t tp_rank = 0;
  std::int64_t num_tp_ranks = 1;
  word scoring_func = "sigmoid";

  static void describe(description<top2_sum_gate>& d) {
    using enum dtype;
    using p = top2_sum_gate;
    d.summary("route tokens to experts: scores, groups, top-k, weights, physical ids, EP/TP masks");
    d.tolerance("ids: bits; topk_weights: |error| <= 1e-8 + 1e-5 * |weight|");
    d.in("logits", &p::logits, "num_tokens, num_experts", f32, "router outputs").contiguous();
    d.in("bias", &p::bias, "num_experts", f32, "added for the selection only").contiguous();
    d.in("mask", &p::mask, "num_tokens | ...", boolean, "true: route the token").optional().contiguous();
    d.in("fix_routing_mask", &p::fix_routing_mask, "num_tokens", boolean,
         "true: take the ids of unmapped_topk_idx")
        .optional()
        .contiguous();
    d.in("to_physical_map", &p::to_physical_map,
         "num_experts + (use_shared_as_routed ? num_shared_experts : 0), map_columns", i32,
         "physical ids of each logical expert")
        .optional()
        .contiguous();
    d.in("logical_count", &p::logical_count, "num_experts + (use_shared_as_routed ? num_shared_experts : 0)",
         i32, "used columns of each row of the map")
        .optional()
        .contiguous();
    d.inout("unmapped_topk_idx", &p::unmapped_topk_idx, "num_tokens, num_topk", i64,
            "logical ids; in for fixed tokens, else out")
        .optional();
    d.out("topk_idx", &p::topk_idx, "num_tokens, num_topk + (use_shared_as_routed ? num_shared_experts : 0)",
          i64, "expert ids");
    d.out("topk_weights", &p::topk_weights,
          "num_tokens, num_topk + (use_shared_as_routed ? num_shared_experts : 0)", f32,
          "weight of each slot");
    d.attribute("num_topk", &p::num_topk, "routed experts per token");
    d.attribute("num_topk_groups", &p::num_topk_groups, "groups kept; 0 without groups");
    d.attribute("num_groups", &p::num_groups, "groups of experts; 0 without groups");
    d.attribute("use_shared_as_routed", &p::use_shared_as_routed, "append slots for the shared experts");
    d.attribute("num_shared_experts", &p::num_shared_experts, "shared experts, 1 or 2 where used");
    d.attribute("routed_scaling_factor", &p::routed_scaling_factor, "factor of the routed weights");
    d.attribute("ep_rank", &p::ep_rank, "expert-parallel rank of the caller");
    d.attribute("num_ep_ranks", &p::num_ep_ranks, "expert-parallel ranks");
    d.attribute("tp_rank", &p::tp_rank, "tensor-parallel rank of the caller");
    d.attribute("num_tp_ranks", &p::num_tp_ranks, "tensor-parallel ranks");
    d.attribute("scoring_func", &p::scoring_func, "sigmoid, sqrtsoftplus or softmax, in any case of letters");
    d.ignored({"api"});
    d.kept("1 <= num_topk <= num_experts, num_topk <= 32, num_topk + shared slots <= 32");
    d.kept("num_experts is a multiple of 4");
    d.kept(
        "num_topk_groups and num_groups are both 0 or both positive; num_topk_groups <= num_groups; "
        "num_experts is a multiple of num_groups");
    d.kept(
        "fewer groups kept than there are: at most 32 groups, 2 to 32 experts per group, num_topk <= experts "
        "in the kept groups");
    d.kept(
        "shared slots: 1 or 2; num_topk is a multiple of them, num_experts of num_topk / them; the map has "
        "that many extra columns");
    d.kept("logits, bias, masks, map and counts are contiguous");
    d.lifted("max(num_experts / 32 rounded up to 4, num_topk_groups) is a multiple of 4");
    d.trap("the logits of a routed token must be finite");
    d.trap("unmapped_topk_idx of a fixed token must be an expert id below num_experts");
    d.trap("logical_count must be 1 to the columns of to_physical_map; the index is the logical expert");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
