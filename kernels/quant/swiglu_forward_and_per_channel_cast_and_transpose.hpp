#pragma once
#include <portile/kernels/quant/swiglu.hpp>

namespace portile::quant {

/// SwiGLU of x = [left | right], rounded to bf16, then quantised per column to e4m3 in blocks of
/// `num_per_tokens` rows:
///   a = bf16((l / (1 + exp(-l))) * r), l = min(left, c), r = max(min(right, c), -c) with a clamp value c
///   out, out_sf = quant.per_channel_cast(a); codes transposed, out[j, t], unless without_transpose
struct swiglu_forward_and_per_channel_cast_and_transpose {
  static constexpr const char* name = "quant.swiglu_forward_and_per_channel_cast_and_transpose";

  tensor x{};
  tensor out{};
  tensor out_sf{};
  word fmt{};
  std::int64_t num_per_tokens = 128;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool without_transpose = false;
  std::optional<double> clamp_value{};

  static void describe(description<swiglu_forward_and_per_channel_cast_and_transpose>& d) {
    using enum dtype;
    using op = swiglu_forward_and_per_channel_cast_and_transpose;
    d.summary("SwiGLU, then a per-channel cast to e4m3 with transposed codes");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, 2 * hidden_size", {bf16, f32}, "left and right half side by side");
    d.out("out_sf", &op::out_sf, "ceil(num_tokens, num_per_tokens), hidden_size", f32, "scales, row-major");
    d.out("out", &op::out,
          "without_transpose ? num_tokens : hidden_size, without_transpose ? hidden_size : num_tokens", e4m3,
          "codes");
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "e4m3"});
    d.attribute("num_per_tokens", &op::num_per_tokens, "tokens per scale: 32 or 128");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.attribute("without_transpose", &op::without_transpose,
                "out is [tokens, channels] instead of [channels, tokens]");
    d.attribute("clamp_value", &op::clamp_value, "bound of left from above and of right on both sides");
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
