#pragma once
// Rules that the norm operations share. Host only.
#include <string>

#include <portile/core/check.hpp>

namespace portile::norm {

/// 0 < hidden_size <= 8192 and a multiple of `unit`.
inline bool check_hidden_size(checker& c, std::int64_t unit) {
  const std::int64_t h = c.dim("hidden_size");
  return c.need(h > 0 && h <= 8192, "hidden_size", h, "must be 1 to 8192") &&
         c.need_multiple("hidden_size", h, unit);
}

/// All strides but the last are multiples of 16 elements, where the dimension has more than one entry.
inline bool check_strides(checker& c, const std::string& name, const tensor& t) {
  for (int i = 0; i + 1 < t.rank; ++i)
    if (t.extent(i) > 1 && !c.need_multiple(name + ".strides[" + std::to_string(i) + "]", t.stride(i), 16))
      return false;
  return true;
}

/// The rank of `x` (less `fewer` dimensions) for one more tensor, if it is given.
inline bool check_rank(checker& c, const std::string& name, const tensor& t, const tensor& x, int fewer = 0) {
  return c.need(
      !t.defined() || t.rank == x.rank - fewer, name + ".rank", t.rank,
      "must be " + std::to_string(x.rank - fewer) + ": x has " + std::to_string(x.rank) + " dimensions");
}

inline bool check_type_of_x(checker& c, const std::string& name, const tensor& t, const tensor& x) {
  return c.need(!t.defined() || t.dtype == x.dtype, name + ".dtype", t.dtype,
                "must be " + std::string(to_string(x.dtype)) + ", the type of x");
}

/// What forward and its fusion with a cast have in common: x, residual, weight, residual_out, rstd.
inline bool check_forward_inputs(checker& c, const auto& p) {
  return check_strides(c, "x", p.x) && check_type_of_x(c, "weight", p.weight, p.x) &&
         check_type_of_x(c, "residual", p.residual, p.x) &&
         check_type_of_x(c, "residual_out", p.residual_out, p.x) &&
         check_rank(c, "residual", p.residual, p.x) && check_rank(c, "out", p.out, p.x) &&
         check_rank(c, "residual_out", p.residual_out, p.x) && check_rank(c, "rstd", p.rstd, p.x, 1);
}

}  // namespace portile::norm
