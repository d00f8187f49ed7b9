#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// Hashes the n-gram that ends at each token into one row number per embedding table. For layer l and token
/// t:
///   h = id_0 * multiplier_0                                  (64-bit, wraps modulo 2^64; ids widen with
///   sign) for q = 1 .. n-1:  h ^= id_q * multiplier_q
///     out[l, t, (q-1)*E + e] = floormod(h, vocab_sizes[l, q-1, e]) + offsets[l, (q-1)*E + e]
/// with E tables per n-gram size; floormod lies in [0, vocab) also for negative h. Tokens with a set mask get
/// -1 in every column of every layer. n = 1 gives zero columns. A column whose vocabulary is below 1, or
/// whose sum leaves int32, gets -1.
struct hash {
  static constexpr const char* name = "engram.hash";

  tensor ngram_token_ids{};
  tensor multipliers{};
  tensor vocab_sizes{};
  tensor offsets{};
  tensor image_token_mask{};
  tensor out{};

  static void describe(description<hash>& d) {
    using enum dtype;
    d.summary("rows of the embedding tables that the n-grams of each token hash to");
    d.tolerance("bits");
    d.in("ngram_token_ids", &hash::ngram_token_ids, "num_tokens, max_ngram_size", {i32},
         "the token's id and those before it");
    d.in("multipliers", &hash::multipliers, "num_ngram_layers, max_ngram_size", {i64},
         "one factor per layer and position");
    d.in("vocab_sizes", &hash::vocab_sizes, "num_ngram_layers, max_ngram_size - 1, num_embed_table_per_ngram",
         {i32}, "rows of each table, at least 1");
    d.in("offsets", &hash::offsets, "num_ngram_layers, (max_ngram_size - 1) * num_embed_table_per_ngram",
         {i32}, "first row of each table in the layer's buffer");
    d.in("image_token_mask", &hash::image_token_mask, "num_tokens", {boolean}, "tokens that have no n-gram")
        .optional();
    d.out("out", &hash::out, "num_ngram_layers, num_tokens, (max_ngram_size - 1) * num_embed_table_per_ngram",
          {i32}, "row numbers");
    d.lifted("at most 2 097 120 tokens in one call");
    d.trap("vocab_sizes: must be at least 1");
    d.trap("out: hash plus offset must fit in int32");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::engram
