#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Codes to values: out = decode(x) * x_sf, one fp32 product, then one rounding to out's type. x_sf has one
/// scale per block of x_block_rows x x_block_cols; blocks at the far edges may be partial. Overflow gives
/// Inf, NaN codes give NaN. The flags say what layout x_sf has: they are checked against it. Packed exponents
/// run along the rows where a block is one column wide, else along the columns.
struct cast_back {
  static constexpr const char* name = "quant.cast_back";

  tensor x{};
  tensor x_sf{};
  tensor out{};
  word fmt{};
  std::int64_t x_block_rows = 1;
  std::int64_t x_block_cols = 128;
  bool use_tma_aligned_col_major_sf = false;
  bool use_packed_ue8m0 = false;

  static void describe(description<cast_back>& d) {
    using enum dtype;
    using op = cast_back;
    d.summary("codes with scales per block back to bf16 or f32");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", {e4m3, e2m1x2, e5m6x8}, "codes");
    d.in("x_sf", &op::x_sf, "ceil(num_tokens, x_block_rows), ceil(hidden_size, x_block_cols)",
         {f32, e4m3, ue8m0x4}, "scales, in the layout that the flags tell")
        .any_strides()
        .rows_packed("x_block_cols - 1 ? 0 : 1");
    d.out("out", &op::out, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "bf16", "fp32"});
    d.attribute("x_block_rows", &op::x_block_rows, "rows per scale");
    d.attribute("x_block_cols", &op::x_block_cols, "channels per scale");
    d.attribute("use_tma_aligned_col_major_sf", &op::use_tma_aligned_col_major_sf,
                "x_sf is column-major, columns 16-byte aligned");
    d.attribute("use_packed_ue8m0", &op::use_packed_ue8m0, "x_sf holds four exponents per int32");
    d.ignored({"api", "round_sf", "use_e4m3_sf"});
    d.kept("hidden_size is a multiple of 64 (e5m6: of 8)");
    d.kept("x_block_rows and x_block_cols are positive");
    d.kept("blocks one column wide have no column-major scales");
    d.lifted("x is contiguous");
    d.lifted("x_block_rows divides 128");
    d.lifted("packed scales need the column-major layout");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
