#pragma once
#include <portile/core/problem.hpp>

namespace portile::norm {

/// norm.forward, whose result, rounded to the type of x, is quantised as quant.per_token_cast does with
/// groups of 32 channels:
///   v = norm.forward(x, residual, weight, eps, out_scale)      -> out_bf16, rounded once more where x is f32
///   (out, out_sf) = quant.per_token_cast(v, num_per_channels = 32)
/// out_sf has the layout that the flags ask for; with three dimensions each batch has a buffer of its own,
/// one after the other. mega_moe_sf gets a second copy of the exponent bytes for blocks of bm =
/// mega_moe_block_m tokens: token t with i = t mod bm goes to row (t / bm) * align(bm, 128) + (i / 128) * 128
/// + (i mod 32) * 4 + (i mod 128) / 32, channel c to byte (c / 32) mod 4 of column c / 128. Its other rows
/// keep their value. Tolerance: rstd, residual_out and out_bf16 as norm.forward; codes and scales equal the
/// two operations one after the other, to the bit, within one backend.
struct forward_and_per_token_cast {
  static constexpr const char* name = "norm.forward_and_per_token_cast";

  tensor x{};
  tensor residual{};
  tensor weight{};
  tensor out{};
  tensor out_sf{};
  tensor out_bf16{};
  tensor residual_out{};
  tensor rstd{};
  tensor mega_moe_sf{};
  double eps = 1e-6;
  double out_scale = 1;
  word fmt{};
  std::int64_t num_per_channels = 32;
  bool use_tma_aligned_col_major_sf = false;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool use_packed_ue8m0 = false;
  std::int64_t mega_moe_block_m = 0;
  bool with_out_bf16 = false;
  bool with_rstd = false;

  static void describe(description<forward_and_per_token_cast>& d) {
    using P = forward_and_per_token_cast;
    using enum dtype;
    d.summary("RMSNorm with an optional residual, then quantisation with one scale per 32 channels");
    d.tolerance("as norm.forward; out and out_sf as quant.per_token_cast of that result");
    const char* rows = "num_tokens, hidden_size | batch, num_tokens, hidden_size";
    d.in("x", &P::x, rows, {bf16, f32}, "rows to normalise");
    d.in("residual", &P::residual, rows, {bf16, f32}, "added to x first; type of x").optional();
    d.in("weight", &P::weight, "hidden_size", {bf16, f32}, "factor of each channel; type of x")
        .optional()
        .contiguous();
    d.out("out", &P::out, rows, {e4m3, e2m1x2}, "codes");
    d.out("out_sf", &P::out_sf,
          "num_tokens, ceil(hidden_size, num_per_channels) | batch, num_tokens, ceil(hidden_size, "
          "num_per_channels)",
          {f32, ue8m0x4}, "scales, in the layout that the flags ask for")
        .any_strides();
    d.out("out_bf16", &P::out_bf16, rows, {bf16}, "the normalised rows").optional();
    d.out("residual_out", &P::residual_out, rows, {bf16, f32}, "x + residual, or x; type of x").optional();
    d.out("rstd", &P::rstd, "num_tokens | batch, num_tokens", {f32}, "reciprocal root mean square")
        .optional()
        .any_strides();
    d.inout("mega_moe_sf", &P::mega_moe_sf, "mega_moe_rows, hidden_size / 32", {ue8m0x4},
            "exponents in the order of blocks of tokens, column-major")
        .optional()
        .any_strides();
    d.attribute("eps", &P::eps, "added to the mean of squares");
    d.attribute("out_scale", &P::out_scale, "factor of the result");
    d.attribute("fmt", &P::fmt, "format of out; empty: by out.dtype").one_of({"", "e4m3", "e2m1"});
    d.attribute("num_per_channels", &P::num_per_channels, "channels per scale: 32");
    d.attribute("use_tma_aligned_col_major_sf", &P::use_tma_aligned_col_major_sf,
                "out_sf is column-major, columns 16-byte aligned");
    d.attribute("sf_clamp_min", &P::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &P::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_packed_ue8m0", &P::use_packed_ue8m0,
                "out_sf holds four exponents per int32; needs round_sf");
    d.attribute("mega_moe_block_m", &P::mega_moe_block_m, "tokens per block of mega_moe_sf; 0 without it");
    d.attribute("with_out_bf16", &P::with_out_bf16, "infer lists out_bf16");
    d.attribute("with_rstd", &P::with_rstd, "infer lists rstd");
    d.ignored({"api"});
    d.kept("hidden_size is 1 to 8192 and a multiple of 32");
    d.kept("row and batch strides of x are multiples of 16 elements");
    d.kept("weight is contiguous and has the type of x");
    d.kept("num_per_channels is 32");
    d.kept("use_packed_ue8m0 needs round_sf");
    d.kept(
        "mega_moe_sf needs round_sf, two dimensions, hidden_size a multiple of 128 and ceil(num_tokens, bm) "
        "* align(bm, 128) rows");
    d.lifted("residual and preallocated results have the strides of x");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::norm
