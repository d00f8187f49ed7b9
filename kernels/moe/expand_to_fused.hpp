#pragma once
#include <portile/core/problem.hpp>
#include <portile/kernels/moe/expand.hpp>

namespace portile::moe {

/// Copies each token's row to the rows of the expert-major buffer that its slots name:
///   out[p] = x[t] where token_topk_to_pos[t, j] = p >= 0
/// Rows with pos_to_expert < 0 are zero bytes, whatever names them, and so are rows that no slot names. No
/// position may occur twice. Elements move as bytes. A position past the rows is skipped.
struct expand_to_fused {
  static constexpr const char* name = "moe.expand_to_fused";

  tensor x{};
  tensor token_topk_to_pos{};
  tensor pos_to_expert{};
  tensor out{};

  static void describe(description<expand_to_fused>& d) {
    using enum dtype;
    using p = expand_to_fused;
    d.summary("copy token rows to their experts' rows");
    d.tolerance("bits");
    d.in("x", &p::x, "num_tokens, hidden_size", movable_types, "values").contiguous();
    d.in("token_topk_to_pos", &p::token_topk_to_pos, "num_tokens, num_topk", i32,
         "row of each slot, -1 for none")
        .contiguous();
    d.in("pos_to_expert", &p::pos_to_expert, "num_rows", i32, "expert of each row, -1 on padding");
    d.out("out", &p::out, "num_rows, hidden_size", movable_types, "rows of the experts");
    d.ignored({"api", "alignment"});
    d.kept("x and token_topk_to_pos are contiguous");
    d.trap("token_topk_to_pos must be below the number of rows");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
