#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Rounds x in place to what quantisation keeps of it: x = quant.cast_back(quant.per_token_cast(x)) in x's
/// type, with one scale per group of `num_per_channels` channels. The scales and codes are not kept.
struct per_token_cast_and_cast_back {
  static constexpr const char* name = "quant.per_token_cast_and_cast_back";

  tensor x{};
  word fmt = "e4m3";
  std::int64_t num_per_channels = 128;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool use_e4m3_sf = false;

  static void describe(description<per_token_cast_and_cast_back>& d) {
    using enum dtype;
    using op = per_token_cast_and_cast_back;
    d.summary("round each row in place to e4m3 or e2m1 with one scale per group of channels");
    d.tolerance("bits");
    d.inout("x", &op::x, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.attribute("fmt", &op::fmt, "format of the codes").one_of({"e4m3", "e2m1"});
    d.attribute("num_per_channels", &op::num_per_channels, "channels per scale: 16, 32, 64 or 128");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_e4m3_sf", &op::use_e4m3_sf, "scales are e4m3; excludes round_sf");
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 64 and of num_per_channels");
    d.kept("num_per_channels is 16, 32, 64 or 128");
    d.kept("use_e4m3_sf excludes round_sf");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
