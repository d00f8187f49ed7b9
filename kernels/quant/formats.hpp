#pragma once
#include <portile/core/problem.hpp>

namespace portile::quant {

/// Codes to f32 values and f32 values to codes, without scales; conversions of core/numeric, element by
/// element. decode: x holds codes of `fmt` (e4m3; e2m1x2; e5m6x8; bf16; ue8m0 as u8), out f32. Exact; e4m3
/// and e5m6 have NaN, e5m6 has Inf, ue8m0 byte 0 is 0.0 and 255 is +Inf. encode: x is f32; nearest even
/// (e5m6: subnormals as core/numeric/e5m6.hpp says), saturating, bf16 overflow gives Inf. e2m1 codes go two
/// to an element into e2m1x2, or one to an element into u8. ue8m0 takes positive normal powers of two;
/// another value is bad data and gives the next power of two.
struct formats {
  static constexpr const char* name = "quant.formats";

  tensor x{};
  tensor out{};
  word fmt = "e4m3";
  word direction = "encode";

  static void describe(description<formats>& d) {
    using enum dtype;
    using op = formats;
    d.summary("encode or decode a number format without scales");
    d.tolerance("bits");
    d.in("x", &op::x, "..., num_values", {f32, e4m3, e2m1x2, e5m6x8, bf16, u8}, "f32 values, or codes")
        .contiguous();
    d.out("out", &op::out, "..., num_values", {e4m3, f32, e2m1x2, e5m6x8, bf16, u8}, "codes, or f32 values")
        .contiguous();
    d.attribute("fmt", &op::fmt, "format of the codes").one_of({"e4m3", "e2m1", "e5m6", "bf16", "ue8m0"});
    d.attribute("direction", &op::direction, "encode: f32 to codes; decode: codes to f32")
        .one_of({"encode", "decode"});
    d.ignored({"api"});
    d.kept("x and out are contiguous; packed formats fill whole elements");
    d.trap("x: must be a positive normal power of two to become ue8m0");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::quant
