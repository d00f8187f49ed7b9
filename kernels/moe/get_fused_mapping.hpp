#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// Rows of the expanded buffer, grouped by expert. Expert e owns the rows [expert_start[e], expert_end[e]):
/// its live rows first, one per slot of topk_idx that holds e, in ascending order of the flat index token *
/// num_topk + slot, then padding up to a multiple of `alignment` (an expert without slots owns no rows).
/// Segments follow each other from row 0.
///   pos_to_expert, pos_to_token, pos_to_token_topk: expert, token and flat index of a row; -1 on padding and
///   past the segments token_topk_to_pos: row of a slot; -1 where topk_idx is -1 num_tokens_per_expert: rows
///   of the segment, padding included; num_live_per_expert: without it
/// The number of rows is the extent of pos_to_expert; num_expanded_tokens, when not 0, must equal it. With 0
/// rows infer gives the worst case. num_tokens_per_expert_list is num_tokens_per_expert in host memory; it
/// has no elements when num_expanded_tokens or force_no_sync says that the host does not wait. An id out of
/// range counts as -1. With too few rows the segments and their counts are cut at the last row, slots without
/// a row get -1.
struct get_fused_mapping {
  static constexpr const char* name = "moe.get_fused_mapping";

  tensor topk_idx{};
  tensor pos_to_expert{};
  tensor pos_to_token{};
  tensor pos_to_token_topk{};
  tensor token_topk_to_pos{};
  tensor expert_start{};
  tensor expert_end{};
  tensor num_tokens_per_expert{};
  tensor num_live_per_expert{};
  tensor num_tokens_per_expert_list{};
  std::int64_t num_experts = 0;
  std::int64_t num_expanded_tokens = 0;
  std::int64_t alignment = 1;
  bool force_no_sync = false;
  bool with_num_live_per_expert = false;

  static void describe(description<get_fused_mapping>& d) {
    using enum dtype;
    using p = get_fused_mapping;
    d.summary("rows of the expert-major buffer from the expert ids of each token");
    d.tolerance("bits");
    d.capture_unsafe("with num_tokens_per_expert_list, which is written in host memory");
    d.in("topk_idx", &p::topk_idx, "num_tokens, num_topk", i64, "expert of each slot, -1 for none")
        .contiguous();
    d.out("pos_to_expert", &p::pos_to_expert, "num_rows", i32, "expert of a row");
    d.out("pos_to_token", &p::pos_to_token, "num_rows", i32, "token of a row");
    d.out("pos_to_token_topk", &p::pos_to_token_topk, "num_rows", i32, "token * num_topk + slot of a row");
    d.out("token_topk_to_pos", &p::token_topk_to_pos, "num_tokens, num_topk", i32, "row of a slot");
    d.out("expert_start", &p::expert_start, "num_experts", i32, "first row of an expert");
    d.out("expert_end", &p::expert_end, "num_experts", i32, "one past the last row of an expert");
    d.out("num_tokens_per_expert", &p::num_tokens_per_expert, "num_experts", i32,
          "rows of an expert, padding included");
    d.out("num_live_per_expert", &p::num_live_per_expert, "num_experts", i32,
          "rows of an expert without padding")
        .optional();
    d.out("num_tokens_per_expert_list", &p::num_tokens_per_expert_list,
          "num_expanded_tokens ? 0 : (force_no_sync ? 0 : num_experts)", i64,
          "num_tokens_per_expert for the host")
        .optional()
        .host();
    d.attribute("num_experts", &p::num_experts, "number of experts");
    d.attribute("num_expanded_tokens", &p::num_expanded_tokens,
                "number of rows, known before; 0: by the tensors");
    d.attribute("alignment", &p::alignment, "segments are padded to a multiple of this");
    d.attribute("force_no_sync", &p::force_no_sync, "the host list stays empty");
    d.attribute("with_num_live_per_expert", &p::with_num_live_per_expert, "infer lists num_live_per_expert");
    d.ignored({"api"});
    d.kept("topk_idx is contiguous");
    d.kept("alignment is at least 1");
    d.kept("num_tokens * num_topk < 2^31");
    d.lifted("num_experts <= 1024");
    d.lifted("force_no_sync needs num_expanded_tokens");
    d.trap("topk_idx must be -1 or an expert id below num_experts");
    d.trap("the rows must hold every segment; the index is the first expert whose segment does not fit");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
