#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Quantises each column to e4m3 in blocks of `num_per_tokens` rows with one scale per block:
///   v = x, or decode(x) * x_sf of a quantised x with one scale per `num_per_channels` channels of a row, in
///   fp32 sf = max(amax |v|, 1e-4) / 448, rounded up to a power of two with round_sf;  out = encode(v *
///   sf_inv)
/// Packed scales hold four consecutive blocks of one column. Saturating, ties to even; NaN is ignored by amax
/// and gives the NaN code.
struct per_channel_cast {
  static constexpr const char* name = "quant.per_channel_cast";

  tensor x{};
  tensor x_sf{};
  tensor out{};
  tensor out_sf{};
  word fmt{};
  std::int64_t num_per_tokens = 128;
  std::optional<std::int64_t> num_per_channels{};
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool use_packed_ue8m0 = false;

  static void describe(description<per_channel_cast>& d) {
    using enum dtype;
    using op = per_channel_cast;
    d.summary("quantise each column to e4m3 with one scale per block of tokens");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {bf16, f32, e4m3}, "values, or codes with x_sf");
    d.in("x_sf", &op::x_sf, "num_tokens, ceil(hidden_size, num_per_channels)", {f32, ue8m0x4},
         "scales of a quantised x, in any layout")
        .optional()
        .any_strides();
    d.out("out", &op::out, "num_tokens, hidden_size", e4m3, "codes");
    d.out("out_sf", &op::out_sf, "ceil(num_tokens, num_per_tokens), hidden_size", {f32, ue8m0x4},
          "scales, row-major")
        .rows_packed();
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "e4m3"});
    d.attribute("num_per_tokens", &op::num_per_tokens, "tokens per scale: 32 or 128");
    d.attribute("num_per_channels", &op::num_per_channels, "channels per scale of a quantised x: 32 or 128");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_packed_ue8m0", &op::use_packed_ue8m0,
                "out_sf holds the exponents of four blocks per int32; needs round_sf");
    d.ignored({"api"});
    d.kept("num_tokens is a multiple of 128");
    d.kept("hidden_size is a multiple of 64");
    d.kept("num_per_tokens is 32 or 128");
    d.kept("num_per_channels is given with a quantised x only, and is 32 or 128");
    d.kept("use_packed_ue8m0 needs round_sf");
    d.lifted("hidden_size is a multiple of 128");
    d.lifted("x is contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
