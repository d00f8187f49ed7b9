#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Codes to values, with one scale per group of `num_per_channels` channels of a row: quant.cast_back with
/// blocks of one row. out = decode(x) * x_sf, one fp32 product, then one rounding to out's type. x_sf is
/// taken in any layout.
struct per_token_cast_back {
  static constexpr const char* name = "quant.per_token_cast_back";

  tensor x{};
  tensor x_sf{};
  tensor out{};
  word fmt{};
  std::int64_t num_per_channels = 128;

  static void describe(description<per_token_cast_back>& d) {
    using enum dtype;
    using op = per_token_cast_back;
    d.summary("codes with one scale per group of channels back to bf16 or f32");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {e4m3, e2m1x2}, "codes");
    d.in("x_sf", &op::x_sf, "num_tokens, ceil(hidden_size, num_per_channels)", {f32, e4m3, ue8m0x4}, "scales")
        .any_strides();
    d.out("out", &op::out, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "bf16", "fp32"});
    d.attribute("num_per_channels", &op::num_per_channels, "channels per scale");
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 64");
    d.kept("num_per_channels is positive");
    d.lifted("x is contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
