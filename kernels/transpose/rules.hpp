#pragma once
// Rules that both transposes share. Host only.
#include <portile/core/check.hpp>

namespace portile::transpose {

inline void check_transpose(checker& c, const tensor& x, const tensor& out) {
  c.need(out.dtype == x.dtype, "out.dtype", out.dtype,
         "must be that of x, " + std::string(to_string(x.dtype)));
  c.need_multiple("num_rows", c.dim("num_rows"), 64);
  c.need_multiple("num_cols", c.dim("num_cols"), 64);
  const int row = x.rank - 2;
  c.need(x.numel() == 0 || x.stride(row) % 4 == 0, "x.strides[" + std::to_string(row) + "]", x.stride(row),
         "must be a multiple of 4");
}

}  // namespace portile::transpose
