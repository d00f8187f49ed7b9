#pragma once
#include <portile/core/problem.hpp>

namespace portile::transpose {

/// out[j, i] = x[i, j], the bytes of any type of 1, 2 or 4 bytes.
struct transpose {
  static constexpr const char* name = "transpose.transpose";

  tensor x{};
  tensor out{};

  static void describe(description<transpose>& d) {
    using enum dtype;
    using op = transpose;
    const dtypes any{bf16, e4m3, f32, f16, e4m3fnuz, e5m2, i8, i16, i32, u8, u32, boolean};
    d.summary("transpose a matrix");
    d.tolerance("bits");
    d.in("x", &op::x, "num_rows, num_cols", any, "matrix");
    d.out("out", &op::out, "num_cols, num_rows", any, "its transpose, of the same type");
    d.kept("num_rows and num_cols are multiples of 64");
    d.kept("the row stride of x is a multiple of 4");
    d.lifted("out is contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::transpose
