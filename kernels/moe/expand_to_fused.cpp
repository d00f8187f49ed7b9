#include <portile/core/check.hpp>
#include <portile/kernels/moe/expand_to_fused.hpp>

namespace portile::moe {

void expand_to_fused::check(checker& c) const {
  c.need(out.dtype == x.dtype, "out.dtype", out.dtype,
         "must be " + std::string(to_string(x.dtype)) + ", the dtype of x");
}

void expand_to_fused::infer(inference& i) const { i.out("out", x.dtype); }

}  // namespace portile::moe
