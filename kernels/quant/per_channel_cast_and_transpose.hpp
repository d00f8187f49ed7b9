#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// quant.per_channel_cast of x with the codes transposed: out[c, t] is the code of x[t, c]; out_sf is not
/// transposed.
struct per_channel_cast_and_transpose {
  static constexpr const char* name = "quant.per_channel_cast_and_transpose";

  tensor x{};
  tensor out{};
  tensor out_sf{};
  word fmt{};
  std::int64_t num_per_tokens = 128;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};

  static void describe(description<per_channel_cast_and_transpose>& d) {
    using enum dtype;
    using op = per_channel_cast_and_transpose;
    d.summary("quantise each column to e4m3 with one scale per block of tokens, codes transposed");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.out("out", &op::out, "hidden_size, num_tokens", e4m3, "codes, transposed");
    d.out("out_sf", &op::out_sf, "ceil(num_tokens, num_per_tokens), hidden_size", f32, "scales, row-major");
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "e4m3"});
    d.attribute("num_per_tokens", &op::num_per_tokens, "tokens per scale: 32 or 128");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.ignored({"api"});
    d.kept("num_tokens is a multiple of 128");
    d.kept("hidden_size is a multiple of 64");
    d.kept("num_per_tokens is 32 or 128");
    d.lifted("x is contiguous bf16");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
