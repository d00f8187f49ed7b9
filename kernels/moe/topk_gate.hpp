#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// The num_topk best experts of each token, best first:
///   topk_idx[t, :] = the first num_topk of 0..num_experts-1 ordered by (scores[t, e] descending, e
///   ascending)
/// The order is total: -0 equals +0, subnormals count, NaN ranks below -Inf. So a row always gives num_topk
/// distinct ids in range, and the ids for k are a prefix of those for k + 1.
struct topk_gate {
  static constexpr const char* name = "moe.topk_gate";

  tensor scores{};
  tensor topk_idx{};
  std::int64_t num_topk = 0;
  bool require_finite = false;

  static void describe(description<topk_gate>& d) {
    using enum dtype;
    d.summary("ids of the num_topk largest scores of each token, in order");
    d.tolerance("bits");
    d.in("scores", &topk_gate::scores, "num_tokens, num_experts", f32, "score of each expert").contiguous();
    d.out("topk_idx", &topk_gate::topk_idx, "num_tokens, num_topk", i64, "expert ids, best first")
        .contiguous();
    d.attribute("num_topk", &topk_gate::num_topk, "experts per token");
    d.attribute("require_finite", &topk_gate::require_finite,
                "an infinite score breaks a data rule too, as in TileKernels v2");
    d.ignored({"api"});
    d.kept("1 <= num_topk <= num_experts");
    d.kept("scores is contiguous");
    d.lifted("num_topk <= 32");
    d.trap("scores must not be NaN");
    d.trap("scores must be finite (require_finite)");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
