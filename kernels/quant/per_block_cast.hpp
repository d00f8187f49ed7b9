#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Quantises a matrix in blocks of `block_rows` x `block_cols` with one scale per block:
///   amax = max |x| of the block (NaN ignored, Inf counts as the largest finite value), at least the format's
///   clamp sf   = amax / max_code, rounded up to a power of two with round_sf out  = encode(x * sf_inv),
///   saturating, ties to even; NaN gives the NaN code
/// Blocks at the far edges may be partial. No rows: nothing is written.
struct per_block_cast {
  static constexpr const char* name = "quant.per_block_cast";

  tensor x{};
  tensor out{};
  tensor out_sf{};
  word fmt{};
  std::int64_t block_rows = 128;
  std::int64_t block_cols = 128;
  bool use_tma_aligned_col_major_sf = false;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool use_packed_ue8m0 = false;

  static void describe(description<per_block_cast>& d) {
    using enum dtype;
    d.summary("quantise a matrix to e4m3 or e2m1 with one scale per block");
    d.tolerance("bits");
    d.in("x", &per_block_cast::x, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.out("out", &per_block_cast::out, "num_tokens, hidden_size", {e4m3, e2m1x2}, "codes");
    d.out("out_sf", &per_block_cast::out_sf, "ceil(num_tokens, block_rows), ceil(hidden_size, block_cols)",
          {f32, ue8m0x4}, "scales, in the layout that the flags ask for")
        .any_strides();
    d.attribute("fmt", &per_block_cast::fmt, "format of out; empty: by out.dtype")
        .one_of({"", "e4m3", "e2m1"});
    d.attribute("block_rows", &per_block_cast::block_rows, "rows per scale: 32 or 128");
    d.attribute("block_cols", &per_block_cast::block_cols, "channels per scale: 32 or 128");
    d.attribute("use_tma_aligned_col_major_sf", &per_block_cast::use_tma_aligned_col_major_sf,
                "out_sf is column-major, columns 16-byte aligned");
    d.attribute("sf_clamp_min", &per_block_cast::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &per_block_cast::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_packed_ue8m0", &per_block_cast::use_packed_ue8m0,
                "out_sf holds four exponents per int32; needs round_sf");
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 64");
    d.kept("block_rows and block_cols are 32 or 128 each");
    d.kept("use_packed_ue8m0 needs round_sf");
    d.lifted("num_tokens and hidden_size are multiples of 128");
    d.lifted("x is contiguous");
    d.lifted("out is 16-byte aligned");
    d.lifted("packed scales need the column-major layout");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
