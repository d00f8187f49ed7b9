#pragma once
#include <portile/core/problem.hpp>

namespace portile::rope {

/// Rotates pairs of columns of query, and of key, in place. Of each head the rot_dim columns from rot_offset
/// on change, rot_dim being the columns of cos_sin_cache (cosines in its first half, sines in the second).
/// The tensors may be whole heads, or views of the rotated columns only.
///   row = seqlen_offset + (positions ? positions[b, t] : t);  i = 0 .. rot_dim/2-1:  c = cache[row, i], s =
///   cache[row, rot_dim/2 + i] a = column i, b = column rot_dim/2 + i; interleaved: a = column 2i, b = column
///   2i + 1 a' = fma(a, c, -(b * s)), b' = fma(a, s, b * c); conjugate: a' = fma(a, c, b * s), b' = fma(a,
///   -s, b * c)
/// in fp32, the inner product rounded first, then ties to even. A token whose row is outside the cache is
/// left as it is.
struct apply {
  static constexpr const char* name = "rope.apply";

  tensor query{};
  tensor key{};
  tensor cos_sin_cache{};
  tensor positions{};
  std::int64_t rot_offset = 0;
  bool interleaved = false;
  bool conjugate = false;
  std::int64_t seqlen_offset = 0;

  static void describe(description<apply>& d) {
    using enum dtype;
    using p = apply;
    d.summary("rotary position embedding of query and key, in place");
    d.tolerance("bits");
    d.inout("query", &p::query, "num_tokens, num_heads, head_dim | batch, num_tokens, num_heads, head_dim",
            {bf16, f32, f16}, "query heads");
    d.inout("key", &p::key,
            "num_tokens, num_key_heads, head_dim | batch, num_tokens, num_key_heads, head_dim",
            {bf16, f32, f16}, "key heads")
        .optional();
    d.in("cos_sin_cache", &p::cos_sin_cache, "num_positions, rot_dim", f32,
         "cosines, then sines, of each position");
    d.in("positions", &p::positions, "num_tokens | batch, num_tokens", {i32, i64},
         "position of each token; absent: its index")
        .optional();
    d.attribute("rot_offset", &p::rot_offset, "first rotated column of a head");
    d.attribute("interleaved", &p::interleaved, "pairs are neighbouring columns");
    d.attribute("conjugate", &p::conjugate, "rotate backwards");
    d.attribute("seqlen_offset", &p::seqlen_offset, "added to every position");
    d.ignored({"api"});
    d.kept(
        "query and key have the same rank (3 or 4), dtype, tokens and columns; positions have one or two "
        "dimensions to match");
    d.kept("rot_dim is even; the rotated columns lie in a head");
    d.kept("seqlen_offset fits an int32");
    d.lifted("rot_dim is 64 or 128");
    d.lifted("with several batches their stride is a multiple of 8 elements");
    d.lifted("positions fit an int32");
    d.trap("seqlen_offset + position must be a row of cos_sin_cache; the index is that of the token");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::rope
