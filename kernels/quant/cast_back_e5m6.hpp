#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// E5M6 codes to values: out = decode(x) * x_sf, one fp32 product, then one rounding to out's type. x_sf has
/// one scale per block of x_block_rows x x_block_cols, in any layout. The same as quant.cast_back with an
/// e5m6x8 input.
struct cast_back_e5m6 {
  static constexpr const char* name = "quant.cast_back_e5m6";

  tensor x{};
  tensor x_sf{};
  tensor out{};
  word fmt{};
  std::int64_t x_block_rows = 1;
  std::int64_t x_block_cols = 128;

  static void describe(description<cast_back_e5m6>& d) {
    using enum dtype;
    using op = cast_back_e5m6;
    d.summary("e5m6 codes with scales per block back to bf16 or f32");
    d.tolerance("bits");
    d.in("x", &op::x, "num_tokens, hidden_size", e5m6x8, "codes");
    d.in("x_sf", &op::x_sf, "ceil(num_tokens, x_block_rows), ceil(hidden_size, x_block_cols)", {f32, ue8m0x4},
         "scales")
        .any_strides()
        .rows_packed("x_block_cols - 1 ? 0 : 1");
    d.out("out", &op::out, "num_tokens, hidden_size", {bf16, f32}, "values");
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "bf16", "fp32"});
    d.attribute("x_block_rows", &op::x_block_rows, "rows per scale");
    d.attribute("x_block_cols", &op::x_block_cols, "channels per scale");
    d.ignored({"api", "x_special_fmt"});
    d.kept("hidden_size is a multiple of 8");
    d.kept("x_block_rows and x_block_cols are positive");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
