#include <portile/kernels/moe/expand_to_fused_with_sf.hpp>
#include <portile/kernels/quant/scales.hpp>

namespace portile::moe {
namespace {

quant::scale_flags flags(const expand_to_fused_with_sf& p) {
  const bool packed = p.x_sf.dtype == dtype::ue8m0x4;
  return {.col_major = p.use_tma_aligned_col_major_sf, .round = packed, .packed = packed, .e4m3 = false};
}

}  // namespace

void expand_to_fused_with_sf::check(checker& c) const {
  c.need_one_of<std::int64_t>("num_per_channels", num_per_channels, {32, 128});
  c.need(out.dtype == x.dtype, "out.dtype", out.dtype,
         "must be " + std::string(to_string(x.dtype)) + ", the dtype of x");
  c.need(x_sf.dtype != dtype::ue8m0x4 || use_tma_aligned_col_major_sf, "use_tma_aligned_col_major_sf",
         use_tma_aligned_col_major_sf, "must be set with packed scales");
  c.need(out_sf.dtype == x_sf.dtype, "out_sf.dtype", out_sf.dtype,
         "must be " + std::string(to_string(x_sf.dtype)) + ", the dtype of x_sf");
  quant::check_scales(c, "out_sf", out_sf, flags(*this));
}

void expand_to_fused_with_sf::infer(inference& i) const {
  i.out("out", x.dtype);
  quant::infer_scales(i, "out_sf", i.dim("num_rows"),
                      num_per_channels > 0 ? numeric::ceil_div(i.dim("hidden_size"), num_per_channels) : 0,
                      flags(*this));
}

}  // namespace portile::moe
