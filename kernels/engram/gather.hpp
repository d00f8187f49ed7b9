#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// Looks rows of an embedding table up and lays them side by side: out[t] = table[index[t, 0]],
/// table[index[t, 1]], ... Elements are copied bit by bit. Index -1 stands for "no row" and gives zeros; any
/// other index outside the table gives zeros too and traps.
struct gather {
  static constexpr const char* name = "engram.gather";

  tensor table{};
  tensor index{};
  tensor out{};

  static void describe(description<gather>& d) {
    using enum dtype;
    d.summary("rows of an embedding table at hashed positions, concatenated per token");
    d.tolerance("bits");
    d.in("table", &gather::table, "num_table_rows, embed_dim", {bf16}, "the embedding rows");
    d.in("index", &gather::index, "num_tokens, num_indices", {i32}, "row numbers, -1 for none");
    d.out("out", &gather::out, "num_tokens, num_indices * embed_dim", {bf16}, "the rows side by side");
    d.trap("index: must be -1 or a row of the table");
  }
  void check(checker&) const {}
  void infer(inference& i) const;
};

}  // namespace portile::engram
