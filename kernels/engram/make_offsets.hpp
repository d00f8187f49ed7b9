#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// First row of each embedding table in its layer's buffer: per layer the exclusive prefix sum of the
/// flattened table sizes. A sum that leaves int32 is stored as the nearest int32, and traps.
struct make_offsets {
  static constexpr const char* name = "engram.make_offsets";

  tensor vocab_sizes{};
  tensor offsets{};

  static void describe(description<make_offsets>& d) {
    using enum dtype;
    d.summary("offsets of the embedding tables in a layer's buffer");
    d.tolerance("bits");
    d.in("vocab_sizes", &make_offsets::vocab_sizes,
         "num_ngram_layers, max_ngram_size - 1, num_embed_table_per_ngram", {i32}, "rows of each table");
    d.out("offsets", &make_offsets::offsets,
          "num_ngram_layers, (max_ngram_size - 1) * num_embed_table_per_ngram", {i32},
          "rows before each table");
    d.trap("offsets: the sum of the sizes must fit in int32");
  }
  void check(checker&) const {}
  void infer(inference& i) const;
};

}  // namespace portile::engram
