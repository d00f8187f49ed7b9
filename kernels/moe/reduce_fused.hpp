#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// Weighted sum of the expert rows of each token, per column in fp32:
///   acc = +0; for the slots j = 0, 1, ... with pos = token_topk_to_pos[t, j] >= 0:
///     c = topk_weights[t, j], or 1; with x_sf c = c * x_sf[pos], rounded;  acc = fma(x[pos, column], c, acc)
///   with sf acc = acc * sf, rounded;  out = acc in the dtype of out, ties to even; e4m3 saturates, NaN stays
///   NaN
/// A slot without a row contributes nothing, not even 0 * NaN; a token without any gives +0. A position past
/// the rows is skipped.
struct reduce_fused {
  static constexpr const char* name = "moe.reduce_fused";

  tensor x{};
  tensor x_sf{};
  tensor topk_weights{};
  tensor token_topk_to_pos{};
  tensor sf{};
  tensor out{};
  word fmt{};

  static void describe(description<reduce_fused>& d) {
    using enum dtype;
    using p = reduce_fused;
    d.summary("weighted sum of each token's expert rows");
    d.tolerance("bits");
    d.in("x", &p::x, "num_rows, hidden_size", {bf16, f32}, "rows of the experts");
    d.in("x_sf", &p::x_sf, "num_rows", f32, "factor of each row").optional();
    d.in("topk_weights", &p::topk_weights, "num_tokens, num_topk", f32, "weight of each slot; absent: 1")
        .optional();
    d.in("token_topk_to_pos", &p::token_topk_to_pos, "num_tokens, num_topk", i32,
         "row of each slot, -1 for none");
    d.in("sf", &p::sf, "1", f32, "factor of the result before it becomes e4m3").optional();
    d.out("out", &p::out, "num_tokens, hidden_size", {bf16, f32, e4m3}, "result, in the dtype of x or e4m3");
    d.attribute("fmt", &p::fmt, "e4m3, or empty: by out.dtype").one_of({"", "e4m3"});
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 256");
    d.kept("fmt is empty or e4m3; out has the dtype of x unless it is e4m3");
    d.kept("sf needs an e4m3 out");
    d.trap("token_topk_to_pos must be below the number of rows");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
