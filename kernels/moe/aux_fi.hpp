#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// Share of each expert in the routing, for the auxiliary loss, with one fp32 division:
///   out[e] = fp32(count[e] * num_experts) / fp32(num_tokens * num_aux_topk)
/// count[e] = number of entries of topk_idx that equal e, an integer. -1 counts nowhere, an entry out of
/// range neither, but all tokens count in the denominator. Without tokens out is 0.
struct aux_fi {
  static constexpr const char* name = "moe.aux_fi";

  tensor topk_idx{};
  tensor out{};
  std::int64_t num_experts = 0;
  std::int64_t num_aux_topk = 1;

  static void describe(description<aux_fi>& d) {
    using enum dtype;
    using p = aux_fi;
    d.summary("routing share of each expert for the auxiliary loss");
    d.tolerance("bits");
    d.in("topk_idx", &p::topk_idx, "num_tokens, num_topk", i64, "expert of each slot, -1 for none")
        .contiguous();
    d.out("out", &p::out, "num_experts", f32, "share of each expert, 1 when all are equal");
    d.attribute("num_experts", &p::num_experts, "number of experts");
    d.attribute("num_aux_topk", &p::num_aux_topk, "slots per token in the denominator");
    d.ignored({"api"});
    d.kept("topk_idx is contiguous");
    d.kept("num_aux_topk is at least 1");
    d.trap("topk_idx must be -1 or an expert id below num_experts");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
