#include <portile/core/aliasing.hpp>
#include <portile/kernels/mhc/post.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void post::check(checker& c) const {
  check_mult(c);
  check_hidden(c);
  c.need(!same_buffer(out, residual), "out.data", out, "must not be the buffer of residual");
}

void post::infer(inference& i) const { i.out("out", dtype::bf16); }

}  // namespace portile::mhc
