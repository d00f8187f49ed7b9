#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Gathers rows and quantises the columns of the result to e4m3 in blocks of 128 rows:
///   v[r] = x[pos_to_token[r]], 0 where that is negative; x[r] without pos_to_token
///   a quantised x has one scale per row and num_per_channels = 128 channels: v = decode(x) * x_sf in fp32
///   sf = max(amax |v|, 1e-4) / 448 over the rows that exist, rounded up with round_sf;  out = encode(v *
///   sf_inv)
/// Saturating, ties to even; NaN is ignored by amax and gives the NaN code.
struct per_channel_cast_fused {
  static constexpr const char* name = "quant.per_channel_cast_fused";

  tensor x{};
  tensor x_sf{};
  tensor pos_to_token{};
  tensor out{};
  tensor out_sf{};
  word fmt{};
  std::int64_t num_per_tokens = 128;
  std::optional<std::int64_t> num_per_channels{};
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};

  static void describe(description<per_channel_cast_fused>& d) {
    using enum dtype;
    using op = per_channel_cast_fused;
    d.summary("gather rows and quantise the columns to e4m3 with one scale per 128 rows");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {bf16, f32, e4m3}, "values, or codes with x_sf");
    d.in("x_sf", &op::x_sf, "num_tokens, ceil(hidden_size, num_per_channels)", {f32, ue8m0x4},
         "scales of a quantised x, in any layout")
        .optional()
        .any_strides();
    d.in("pos_to_token", &op::pos_to_token, "num_expanded_tokens", i32,
         "row of x for each row of out; negative: zeros")
        .optional();
    d.out("out", &op::out, "num_expanded_tokens, hidden_size", e4m3, "codes");
    d.out("out_sf", &op::out_sf, "ceil(num_expanded_tokens, num_per_tokens), hidden_size", f32,
          "scales, row-major");
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "e4m3"});
    d.attribute("num_per_tokens", &op::num_per_tokens, "rows of out per scale: 128");
    d.attribute("num_per_channels", &op::num_per_channels, "channels per scale of a quantised x: 128");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.ignored({"api"});
    d.kept("num_expanded_tokens is a multiple of 128, with pos_to_token of 16");
    d.kept("hidden_size is a multiple of 64, with a quantised x of 128");
    d.kept("num_per_tokens is 128");
    d.kept("num_per_channels is given with a quantised x only, and is 128");
    d.lifted("x_sf is row-major f32");
    d.lifted("x is contiguous");
    d.trap("pos_to_token: must be below num_tokens");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
