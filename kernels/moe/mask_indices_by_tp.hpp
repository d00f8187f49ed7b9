#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// Expert ids to the ids inside this tensor-parallel rank's experts. With per = num_experts / num_ep_ranks
/// (rounded down), for an id v and r = v / per:
///   out = -1 where v < 0 or r mod num_tp_ranks is not tp_rank, else r / num_tp_ranks * per + v mod per
/// out may be indices itself.
struct mask_indices_by_tp {
  static constexpr const char* name = "moe.mask_indices_by_tp";

  tensor indices{};
  tensor out{};
  std::int64_t num_experts = 0;
  std::int64_t num_ep_ranks = 1;
  std::int64_t tp_rank = 0;
  std::int64_t num_tp_ranks = 1;

  static void describe(description<mask_indices_by_tp>& d) {
    using enum dtype;
    using p = mask_indices_by_tp;
    d.summary("expert ids local to a tensor-parallel rank, -1 for experts of other ranks");
    d.tolerance("bits");
    d.in("indices", &p::indices, "num_tokens, num_topk", {i64, i32}, "expert ids, negative for none");
    d.out("out", &p::out, "num_tokens, num_topk", {i64, i32}, "local ids, with the dtype of indices");
    d.attribute("num_experts", &p::num_experts, "number of experts");
    d.attribute("num_ep_ranks", &p::num_ep_ranks, "expert-parallel ranks");
    d.attribute("tp_rank", &p::tp_rank, "tensor-parallel rank of the caller");
    d.attribute("num_tp_ranks", &p::num_tp_ranks, "tensor-parallel ranks");
    d.ignored({"api"});
    d.kept("num_experts / num_ep_ranks is at least 1");
    d.kept("num_tp_ranks is at least 1, tp_rank one of them");
    d.lifted("num_experts is a multiple of num_ep_ranks");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
