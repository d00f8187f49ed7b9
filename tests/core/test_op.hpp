#pragma once
// An operation that only the tests know: every kind of field, two data rules, and loops that fake backends
// share.
#include <cmath>
#include <cstdint>
#include <optional>

#include <portile/core/abi.h>
#include <portile/core/check.hpp>
#include <portile/core/problem.hpp>

namespace portile::test {

/// out[i, j] = x[i, j] * factor * times + the sum of parts[.][i, j]; total[i] += the sum of the row; count[0]
/// = rows.
struct scale_rows {
  static constexpr const char* name = "test.scale_rows";

  tensor x;
  tensor out;
  tensor total;
  tensor_list parts;
  tensor count;
  bool negate = false;
  std::int64_t times = 1;
  double factor = 1;
  word mode;
  std::optional<std::int64_t> shift;
  std::optional<double> limit;

  static void describe(description<scale_rows>& d) {
    using enum dtype;
    d.summary("scale rows");
    d.tolerance("bits");
    d.in("x", &scale_rows::x, "rows, columns", {f32}, "values").any_strides();
    d.out("out", &scale_rows::out, "rows, columns", {f32, f64}, "scaled values").any_strides();
    d.inout("total", &scale_rows::total, "rows", {f32}, "sums of rows, added to").optional();
    d.list(field_role::in, "parts", &scale_rows::parts, "rows, columns", {f32}, "added to out");
    d.out("count", &scale_rows::count, "1", {i64}, "number of rows").optional().host();
    d.attribute("negate", &scale_rows::negate, "change the sign");
    d.attribute("times", &scale_rows::times, "whole factor");
    d.attribute("factor", &scale_rows::factor, "factor");
    d.attribute("mode", &scale_rows::mode, "who takes it").one_of({"", "host_only", "throws", "fails"});
    d.attribute("shift", &scale_rows::shift, "added to each value");
    d.attribute("limit", &scale_rows::limit, "largest legal value");
    d.trap("x must not be NaN");
    d.trap("x must not be above limit");
    d.ignored({"note"});
  }
  void check(checker& c) const {
    if (!c.need(times != 0, "times", times, "must not be 0")) return;
    c.need(!limit || *limit > 0, "limit", limit, "must be positive");
  }
  void infer(inference& i) const {
    i.out("out", dtype::f32);
    i.out("total", dtype::f32);
  }
};

/// For libportile this operation is an op_info like any other.
inline const op_info& scale_rows_info() {
  static const op_info info = make_op_info<scale_rows>();
  return info;
}

inline void compute(const portile_launch& l, const scale_rows& p) {
  const auto trap = [&](std::uint64_t rule, std::int64_t index) {
    const std::uint64_t word = static_cast<std::uint64_t>(index) * 256 + rule;
    if (l.trap && word < *l.trap) *l.trap = word;
  };
  const std::int64_t rows = p.x.extent(0), columns = p.x.extent(1);
  for (std::int64_t i = 0; i < rows; ++i) {
    float sum = 0;
    for (std::int64_t j = 0; j < columns; ++j) {
      const float x = static_cast<const float*>(p.x.data)[i * p.x.stride(0) + j * p.x.stride(1)];
      if (std::isnan(x)) trap(0, i * columns + j);
      if (p.limit && x > *p.limit) trap(1, i * columns + j);
      float y = x * static_cast<float>(p.factor) * static_cast<float>(p.times) * (p.negate ? -1.f : 1.f) +
                static_cast<float>(p.shift.value_or(0));
      for (std::int64_t k = 0; k < p.parts.size; ++k)
        y += static_cast<const float*>(p.parts[k].data)[i * p.parts[k].stride(0) + j * p.parts[k].stride(1)];
      if (p.out.dtype == dtype::f32)
        static_cast<float*>(p.out.data)[i * p.out.stride(0) + j * p.out.stride(1)] = y;
      else
        static_cast<double*>(p.out.data)[i * p.out.stride(0) + j * p.out.stride(1)] = y;
      sum += y;
    }
    if (p.total) static_cast<float*>(p.total.data)[i * p.total.stride(0)] += sum;
  }
  if (p.count) *static_cast<std::int64_t*>(p.count.data) = rows;
}

}  // namespace portile::test
