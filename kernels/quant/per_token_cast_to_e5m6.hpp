#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Quantises each row to E5M6 with one scale per row: sf = max(amax |x|, 1e-4) / 65024, out = encode(x *
/// sf_inv). Eight codes lie in twelve bytes. NaN is ignored by amax and gives the NaN code. Subnormal codes
/// round as core/numeric/e5m6.hpp says. The same as quant.per_token_cast with an e5m6x8 output.
struct per_token_cast_to_e5m6 {
  static constexpr const char* name = "quant.per_token_cast_to_e5m6";

  tensor x{};
  tensor out{};
  tensor out_sf{};
  word fmt{};
  std::int64_t num_per_channels = 0;
  bool use_tma_aligned_col_major_sf = false;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool use_packed_ue8m0 = false;

  static void describe(description<per_token_cast_to_e5m6>& d) {
    using enum dtype;
    using op = per_token_cast_to_e5m6;
    d.summary("quantise each row to e5m6 with one scale per row");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.out("out", &op::out, "num_tokens, hidden_size", e5m6x8, "codes");
    d.out("out_sf", &op::out_sf, "num_tokens, 1", {f32, ue8m0x4},
          "scales, in the layout that the flags ask for")
        .any_strides();
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "e5m6"});
    d.attribute("num_per_channels", &op::num_per_channels, "channels per scale: hidden_size, also written 0");
    d.attribute("use_tma_aligned_col_major_sf", &op::use_tma_aligned_col_major_sf,
                "out_sf is column-major, columns 16-byte aligned");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_packed_ue8m0", &op::use_packed_ue8m0,
                "out_sf holds four exponents per int32; needs round_sf");
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 8");
    d.kept("num_per_channels is hidden_size");
    d.kept("use_packed_ue8m0 needs round_sf");
    d.lifted("packed scales need the column-major layout");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
