#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Quantises each row in groups of `num_per_channels` channels with one scale per group:
///   amax = max |x| of the group (NaN ignored, Inf counts as the largest finite value), at least the format's
///   clamp sf   = amax / max_code; rounded up to a power of two with round_sf, or to the nearest e4m3 with
///   use_e4m3_sf out  = encode(x * sf_inv), saturating, ties to even; NaN gives the NaN code
/// A quantised x has its own scales x_sf, one per block of x_block_rows x x_block_cols: then x stands for
/// decode(x) * x_sf, and out = encode(x * (x_sf * sf_inv)). The last group of a row may be partial.
/// e5m6 has one scale per row and takes plain x; its subnormals round as core/numeric/e5m6.hpp says.
/// With stochastic_rounding the random bits are a hash of the scaled values and their column.
struct per_token_cast {
  static constexpr const char* name = "quant.per_token_cast";

  tensor x{};
  tensor x_sf{};
  tensor out{};
  tensor out_sf{};
  word fmt{};
  std::int64_t num_per_channels = 128;
  std::int64_t x_block_rows = 0;
  std::int64_t x_block_cols = 0;
  bool use_tma_aligned_col_major_sf = false;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool use_packed_ue8m0 = false;
  bool use_e4m3_sf = false;
  bool stochastic_rounding = false;

  static void describe(description<per_token_cast>& d) {
    using enum dtype;
    d.summary("quantise each row to e4m3, e2m1 or e5m6 with one scale per group of channels");
    d.tolerance("bits");
    d.in("x", &per_token_cast::x, "num_tokens, hidden_size", {bf16, f32, e4m3, e2m1x2},
         "values, or codes with x_sf");
    d.in("x_sf", &per_token_cast::x_sf, "ceil(num_tokens, x_block_rows), ceil(hidden_size, x_block_cols)",
         {f32, e4m3, ue8m0x4}, "scales of a quantised x")
        .optional()
        .any_strides()
        .rows_packed("x_block_cols - 1 ? 0 : 1");
    d.out("out", &per_token_cast::out, "num_tokens, hidden_size", {e4m3, e2m1x2, e5m6x8}, "codes");
    d.out("out_sf", &per_token_cast::out_sf, "num_tokens, ceil(hidden_size, num_per_channels)",
          {f32, e4m3, ue8m0x4}, "scales, in the layout that the flags ask for")
        .any_strides();
    d.attribute("fmt", &per_token_cast::fmt, "format of out; empty: by out.dtype")
        .one_of({"", "e4m3", "e2m1", "e5m6"});
    d.attribute("num_per_channels", &per_token_cast::num_per_channels,
                "channels per scale: 16, 32, 64, 128 or hidden_size");
    d.attribute("x_block_rows", &per_token_cast::x_block_rows, "rows per scale of x; 0 without x_sf");
    d.attribute("x_block_cols", &per_token_cast::x_block_cols, "channels per scale of x; 0 without x_sf");
    d.attribute("use_tma_aligned_col_major_sf", &per_token_cast::use_tma_aligned_col_major_sf,
                "out_sf is column-major, columns 16-byte aligned");
    d.attribute("sf_clamp_min", &per_token_cast::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &per_token_cast::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_packed_ue8m0", &per_token_cast::use_packed_ue8m0,
                "out_sf holds four exponents per int32; needs round_sf");
    d.attribute("use_e4m3_sf", &per_token_cast::use_e4m3_sf, "scales are e4m3; excludes round_sf");
    d.attribute("stochastic_rounding", &per_token_cast::stochastic_rounding,
                "round stochastically, with bits hashed from the data");
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 64 (e5m6: of 8)");
    d.kept("num_per_channels is 16, 32, 64, 128 or hidden_size; hidden_size only without x_sf");
    d.kept("e5m6: num_per_channels is hidden_size; no x_sf, e4m3 scales or stochastic rounding");
    d.kept("use_packed_ue8m0 needs round_sf; use_e4m3_sf excludes round_sf");
    d.lifted("packed scales need the column-major layout");
    d.lifted("num_per_channels of at least the vector width with a quantised x");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
