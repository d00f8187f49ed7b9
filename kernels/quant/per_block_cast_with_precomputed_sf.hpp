#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Quantises a matrix with given scales, one per block of `block_rows` x `block_cols`: out = encode(x * (1 /
/// out_sf)), with an IEEE fp32 quotient. out_sf is an input here and not bounded: a zero scale gives the
/// largest code, and the NaN code for a zero. Saturating, ties to even. Blocks at the far edges may be
/// partial.
struct per_block_cast_with_precomputed_sf {
  static constexpr const char* name = "quant.per_block_cast_with_precomputed_sf";

  tensor x{};
  tensor out_sf{};
  tensor out{};
  word fmt{};
  std::int64_t block_rows = 128;
  std::int64_t block_cols = 128;

  static void describe(description<per_block_cast_with_precomputed_sf>& d) {
    using enum dtype;
    using op = per_block_cast_with_precomputed_sf;
    d.summary("quantise a matrix to e4m3 or e2m1 with given scales per block");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.in("out_sf", &op::out_sf, "ceil(num_tokens, block_rows), ceil(hidden_size, block_cols)", {f32, e4m3},
         "scales, row-major");
    d.out("out", &op::out, "num_tokens, hidden_size", {e4m3, e2m1x2}, "codes");
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "e4m3", "e2m1"});
    d.attribute("block_rows", &op::block_rows, "rows per scale: 32 or 128");
    d.attribute("block_cols", &op::block_cols, "channels per scale: 32 or 128");
    d.ignored({"api", "round_sf"});
    d.kept("hidden_size is a multiple of 64");
    d.kept("block_rows and block_cols are 32 or 128 each");
    d.kept("out_sf is row-major and not packed");
    d.lifted("num_tokens and hidden_size are multiples of 128");
    d.lifted("x is contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
