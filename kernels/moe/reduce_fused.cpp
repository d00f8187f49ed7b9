#include <portile/core/check.hpp>
#include <portile/kernels/moe/reduce_fused.hpp>

namespace portile::moe {

void reduce_fused::check(checker& c) const {
  c.need_multiple("hidden_size", c.dim("hidden_size"), 256);
  c.need(fmt.empty() || out.dtype == dtype::e4m3, "out.dtype", out.dtype, "must be e4m3, as fmt says");
  c.need(out.dtype == dtype::e4m3 || out.dtype == x.dtype, "out.dtype", out.dtype,
         "must be " + std::string(to_string(x.dtype)) + ", the dtype of x, or e4m3");
  c.need(!sf.defined() || out.dtype == dtype::e4m3, "sf", sf, "must be absent unless out is e4m3");
}

void reduce_fused::infer(inference& i) const {
  i.out("out", !fmt.empty() ? dtype::e4m3 : out.defined() ? out.dtype : x.dtype);
}

}  // namespace portile::moe
