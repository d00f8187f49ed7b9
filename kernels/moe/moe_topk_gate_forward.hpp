#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// Routes each token to num_topk experts, best first, with weights; fp32. For a row of logits x:
///   s_e = sqrt(softplus(x_e)), softplus(x) = x > 20 ? x : log1p(exp(x))
///   selected: the num_topk largest s_e + bias_e, best first, in the total order of moe.topk_gate. The bias
///   of a token with
///     image_token_mask true is image_bias, otherwise `bias`; an absent one is 0. It never enters a weight
///   weight = (s / (sum of the selected s as 32 lanes of xor shuffles add it + 1e-20)) *
///   routed_scaling_factor
/// A selected expert whose score is NaN or infinite has weight 0 and is left out of the sum (only logits that
/// break the data rule give one). Per token, in this order: `mask` false gives ids -1 and weights 0, logits
/// unseen; force_random true gives random ids and weights, unmapped ids -1, logits unseen; fix_routing_mask
/// true takes the ids of unmapped_topk_idx instead of selecting, an id out of range counting as -1 with
/// weight 0. Otherwise the selected ids are stored in unmapped_topk_idx, if given. use_shared_as_routed
/// appends num_shared_experts slots with ids num_experts, num_experts + 1 and weight 1. A map turns every
/// slot's id into to_physical_map[id, (ep_rank + t * 23333) mod logical_count[id]], 64-bit. scores[t, e] =
/// s_e, zero for masked and forced tokens. force_random: words w0, w1 of Philox4x32-10 with seed ep_rank,
/// subsequence t * 32 + j, block 0 give slot j, shared slots too,
///   the weight fma(fp32(w0), 2^-32, 2^-33) and the (w1 mod (P - j))-th smallest of the ids 0..P-1 that slots
///   0..j-1 have not taken, P being the sum of logical_count, or the experts with the shared ones. No map is
///   applied. With P below the number of slots the row is that of a masked token.
struct moe_topk_gate_forward {
  static constexpr const char* name = "moe.moe_topk_gate_forward";

  tensor logits{};
  tensor bias{};
  tensor image_bias{};
  tensor image_token_mask{};
  tensor mask{};
  tensor fix_routing_mask{};
  tensor force_random{};
  tensor to_physical_map{};
  tensor logical_count{};
  tensor unmapped_topk_idx{};
  tensor topk_idx{};
  tensor topk_weights{};
  tensor scores{};
  std::int64_t num_topk = 0;
  bool use_shared_as_routed = false;
  std::int64_t num_shared_experts = 0;
  double routed_scaling_factor = 1;
  std::int64_t ep_rank = 0;
  word scoring_func = "sqrtsoftplus";

  static void describe(description<moe_topk_gate_forward>& d) {
    using enum dtype;
    using p = moe_topk_gate_forward;
    d.summary(
        "route tokens to experts: scores, image bias, top-k, weights, physical ids, forced random routes");
    d.tolerance("ids and random weights: bits; topk_weights and scores: |error| <= 1e-8 + 1e-5 * |value|");
    d.in("logits", &p::logits, "num_tokens, num_experts", f32, "router outputs").contiguous();
    d.in("bias", &p::bias, "num_experts", f32, "added for the selection only").optional().contiguous();
    d.in("image_bias", &p::image_bias, "num_experts", f32, "the bias of image tokens")
        .optional()
        .contiguous();
    d.in("image_token_mask", &p::image_token_mask, "num_tokens", boolean, "true: an image token")
        .optional()
        .contiguous();
    d.in("mask", &p::mask, "num_tokens | ...", boolean, "true: route the token").optional().contiguous();
    d.in("fix_routing_mask", &p::fix_routing_mask, "num_tokens", boolean,
         "true: take the ids of unmapped_topk_idx")
        .optional()
        .contiguous();
    d.in("force_random", &p::force_random, "num_tokens", boolean, "true: random ids and weights")
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
          i64, "expert ids")
        .contiguous();
    d.out("topk_weights", &p::topk_weights,
          "num_tokens, num_topk + (use_shared_as_routed ? num_shared_experts : 0)", f32,
          "weight of each slot")
        .contiguous();
    d.out("scores", &p::scores, "num_tokens, num_experts", f32, "scores without bias")
        .optional()
        .contiguous();
    d.attribute("num_topk", &p::num_topk, "routed experts per token");
    d.attribute("use_shared_as_routed", &p::use_shared_as_routed, "append slots for the shared experts");
    d.attribute("num_shared_experts", &p::num_shared_experts, "shared experts, 1 or 2 where used");
    d.attribute("routed_scaling_factor", &p::routed_scaling_factor, "factor of the routed weights");
    d.attribute("ep_rank", &p::ep_rank, "expert-parallel rank of the caller; the seed of force_random");
    d.attribute("scoring_func", &p::scoring_func, "sqrtsoftplus, in any case of letters");
    d.ignored({"api"});
    d.kept("1 <= num_topk <= num_experts, num_topk <= 32, num_topk + shared slots <= 32");
    d.kept("num_experts is a multiple of 4");
    d.kept("scoring_func is sqrtsoftplus");
    d.kept("shared slots: 1 or 2");
    d.kept("image_bias and image_token_mask come together");
    d.kept("logits, biases, masks, map, counts, topk_idx, topk_weights and scores are contiguous");
    d.trap("the logits of a routed token must be finite");
    d.trap("unmapped_topk_idx of a fixed token must be an expert id below num_experts");
    d.trap("logical_count must be 1 to the columns of to_physical_map; the index is the logical expert");
    d.trap("force_random needs as many physical experts as there are slots; the index is the token");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
