#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// The scales that quant.per_block_cast gives for this x, without the codes.
struct per_block_cast_with_sf_only {
  static constexpr const char* name = "quant.per_block_cast_with_sf_only";

  tensor x{};
  tensor out_sf{};
  word fmt = "e4m3";
  std::int64_t block_rows = 128;
  std::int64_t block_cols = 128;
  bool use_tma_aligned_col_major_sf = false;
  bool round_sf = false;
  std::optional<double> sf_clamp_min{};
  bool use_packed_ue8m0 = false;

  static void describe(description<per_block_cast_with_sf_only>& d) {
    using enum dtype;
    using op = per_block_cast_with_sf_only;
    d.summary("scales of quant.per_block_cast without the codes");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.out("out_sf", &op::out_sf, "ceil(num_tokens, block_rows), ceil(hidden_size, block_cols)",
          {f32, ue8m0x4}, "scales, in the layout that the flags ask for")
        .any_strides();
    d.attribute("fmt", &op::fmt, "format of the codes that the scales are for").one_of({"e4m3", "e2m1"});
    d.attribute("block_rows", &op::block_rows, "rows per scale: 32 or 128");
    d.attribute("block_cols", &op::block_cols, "channels per scale: 32 or 128");
    d.attribute("use_tma_aligned_col_major_sf", &op::use_tma_aligned_col_major_sf,
                "out_sf is column-major, columns 16-byte aligned");
    d.attribute("sf_clamp_min", &op::sf_clamp_min, "lower bound of amax instead of the format's");
    d.attribute("round_sf", &op::round_sf, "scales are rounded up to powers of two");
    d.attribute("use_packed_ue8m0", &op::use_packed_ue8m0,
                "out_sf holds four exponents per int32; needs round_sf");
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 64");
    d.kept("block_rows and block_cols are 32 or 128 each");
    d.kept("use_packed_ue8m0 needs round_sf");
    d.lifted("num_tokens and hidden_size are multiples of 128");
    d.lifted("x is contiguous");
    d.lifted("packed scales need the column-major layout");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
