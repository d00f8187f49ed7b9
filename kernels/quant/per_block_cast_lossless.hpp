#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Exact change of e2m1 codes with power-of-two scales into e4m3 codes with larger blocks. Per output block,
/// with e the exponent fields of the scales of the input blocks inside it and E the largest:
///   Eo = max(E - 6, 0), out = e4m3(value of the code * 2^(e - Eo)), out_sf = 2^(Eo - 127)
/// Nothing is lost as long as E >= 7 and e + 5 >= Eo for every input block; other scales are reported as bad
/// data, and their codes are rounded and saturated. The sign of a zero is kept. Sign and mantissa of f32
/// scales are not looked at.
struct per_block_cast_lossless {
  static constexpr const char* name = "quant.per_block_cast_lossless";

  tensor x{};
  tensor x_sf{};
  tensor out{};
  tensor out_sf{};
  word fmt{};
  std::int64_t x_block_rows = 1;
  std::int64_t x_block_cols = 32;
  std::int64_t out_block_rows = 1;
  std::int64_t out_block_cols = 128;
  bool use_tma_aligned_col_major_sf = false;
  bool round_sf = false;
  bool use_packed_ue8m0 = false;

  static void describe(description<per_block_cast_lossless>& d) {
    using enum dtype;
    using op = per_block_cast_lossless;
    d.summary("e2m1 codes to e4m3 codes with larger blocks, without loss");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", e2m1x2, "codes");
    d.in("x_sf", &op::x_sf, "ceil(num_tokens, x_block_rows), ceil(hidden_size, x_block_cols)", {f32, ue8m0x4},
         "scales, powers of two, in any layout")
        .any_strides()
        .rows_packed("x_block_cols - 1 ? 0 : 1");
    d.out("out", &op::out, "num_tokens, hidden_size", e4m3, "codes");
    d.out("out_sf", &op::out_sf, "ceil(num_tokens, out_block_rows), ceil(hidden_size, out_block_cols)",
          {f32, ue8m0x4}, "scales, in the layout that the flags ask for")
        .any_strides();
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "e4m3"});
    d.attribute("x_block_rows", &op::x_block_rows, "rows per scale of x");
    d.attribute("x_block_cols", &op::x_block_cols, "channels per scale of x, a power of two");
    d.attribute("out_block_rows", &op::out_block_rows, "rows per scale of out, a multiple of x_block_rows");
    d.attribute("out_block_cols", &op::out_block_cols,
                "channels per scale of out, a power of two, a multiple of x_block_cols");
    d.attribute("use_tma_aligned_col_major_sf", &op::use_tma_aligned_col_major_sf,
                "out_sf is column-major, columns 16-byte aligned");
    d.attribute("round_sf", &op::round_sf,
                "without effect (scales are powers of two), but packed scales ask for it");
    d.attribute("use_packed_ue8m0", &op::use_packed_ue8m0,
                "out_sf holds four exponents per int32; needs round_sf");
    d.ignored({"api"});
    d.kept("hidden_size is a multiple of 32");
    d.kept("x_block_cols and out_block_cols are powers of two");
    d.kept("an output block is a multiple of an input block along both sides");
    d.kept("use_packed_ue8m0 needs round_sf and use_tma_aligned_col_major_sf");
    d.lifted("num_tokens and hidden_size are multiples of 128");
    d.lifted("x is contiguous");
    d.trap("x_sf: the largest exponent field of an output block must be at least 7");
    d.trap("x_sf: scales of one output block must be within a factor of 2^11");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
