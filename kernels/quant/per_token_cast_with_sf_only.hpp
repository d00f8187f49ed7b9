#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// The scales that quant.per_token_cast gives for this x, without the codes.
struct per_token_cast_with_sf_only {
  static constexpr const char* name = "quant.per_token_cast_with_sf_only";

  tensor x{};
  tensor out_sf{};
  word fmt = "e4m3";
  std::int64_t num_per_channels = 128;
  bool use_tma_aligned_col_major_sf = false;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool use_packed_ue8m0 = false;
  bool use_e4m3_sf = false;

  static void describe(description<per_token_cast_with_sf_only>& d) {
    using enum dtype;
    using op = per_token_cast_with_sf_only;
    d.summary("scales of quant.per_token_cast without the codes");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.out("out_sf", &op::out_sf, "num_tokens, ceil(hidden_size, num_per_channels)", {f32, e4m3, ue8m0x4},
          "scales, in the layout that the flags ask for")
        .any_strides();
    d.attribute("fmt", &op::fmt, "format of the codes that the scales are for").one_of({"e4m3", "e2m1"});
    d.attribute("num_per_channels", &op::num_per_channels, "channels per scale: 16, 32, 64 or 128");
    d.attribute("use_tma_aligned_col_major_sf", &op::use_tma_aligned_col_major_sf,
                "out_sf is column-major, columns 16-byte aligned");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_packed_ue8m0", &op::use_packed_ue8m0,
                "out_sf holds four exponents per int32; needs round_sf");
    d.attribute("use_e4m3_sf", &op::use_e4m3_sf, "scales are e4m3; excludes round_sf");
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 64");
    d.kept("num_per_channels is 16, 32, 64 or 128");
    d.kept("use_packed_ue8m0 needs round_sf; use_e4m3_sf excludes round_sf");
    d.lifted("packed scales need the column-major layout");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
