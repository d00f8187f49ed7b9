#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Converts elements without scales. To bf16: nearest even, overflow gives Inf; to e4m3: nearest even,
/// saturating; widening is exact. NaN gives the format's NaN code. With stochastic_rounding (f32 to bf16, f32
/// to e4m3, bf16 to e4m3): with r the element's 16 random bits, the magnitude is rounded up exactly when its
/// fraction between the neighbours + r / 2^16 >= 1; saturating. The bits are a hash of the four elements of a
/// quad (4i .. 4i+3 of the flat tensor) and i, see core/numeric/stochastic.hpp: equal inputs, equal results.
struct cast {
  static constexpr const char* name = "quant.cast";

  tensor x{};
  tensor out{};
  word fmt{};
  bool stochastic_rounding = false;

  static void describe(description<cast>& d) {
    using enum dtype;
    using op = cast;
    d.summary("convert elements between f32, bf16 and e4m3, rounding to nearest or stochastically");
    d.tolerance("bits");
    d.in("x", &op::x, "num_rows, num_cols | ...", {f32, bf16, e4m3}, "values of any shape").contiguous();
    d.out("out", &op::out, "num_rows, num_cols | ...", {bf16, e4m3, f32}, "values of the same shape")
        .contiguous();
    d.attribute("fmt", &op::fmt, "format of out; empty: by out.dtype").one_of({"", "bf16", "fp32", "e4m3"});
    d.attribute("stochastic_rounding", &op::stochastic_rounding,
                "round stochastically, with bits hashed from the data");
    d.ignored({"api"});
    d.kept("x is contiguous");
    d.kept(
        "stochastic rounding: f32 to bf16, f32 to e4m3 or bf16 to e4m3; the number of elements is a multiple "
        "of 4");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
