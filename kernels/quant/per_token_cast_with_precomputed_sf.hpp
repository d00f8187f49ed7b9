#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Quantises each row with given scales, one per group of `num_per_channels` channels: out = encode(x * (1 /
/// out_sf)), with an IEEE fp32 quotient. out_sf is an input here and not bounded: a zero scale gives the
/// largest code, and the NaN code for a zero. Saturating, ties to even.
struct per_token_cast_with_precomputed_sf {
  static constexpr const char* name = "quant.per_token_cast_with_precomputed_sf";

  tensor x{};
  tensor out_sf{};
  tensor out{};
  word fmt{};
  std::int64_t num_per_channels = 128;

  static void describe(description<per_token_cast_with_precomputed_sf>& d) {
    using enum dtype;
    using op = per_token_cast_with_precomputed_sf;
    d.summary("quantise each row to e4m3 or e2m1 with given scales");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.in("out_sf", &op::out_sf, "num_tokens, ceil(hidden_size, num_per_channels)", {f32, e4m3},
         "scales, row-major");
    d.out("out", &op::out, "num_tokens, hidden_size", {e4m3, e2m1x2}, "codes");
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "e4m3", "e2m1"});
    d.attribute("num_per_channels", &op::num_per_channels, "channels per scale: 16, 32, 64 or 128");
    d.ignored({"api", "round_sf"});
    d.kept("hidden_size is a multiple of 64");
    d.kept("num_per_channels is 16, 32, 64 or 128");
    d.kept("out_sf is row-major and not packed");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
