#include <portile/kernels/mhc/expand_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void expand_backward::check(checker& c) const { check_mult(c); }

void expand_backward::infer(inference& i) const { i.out("x_grad", dtype::bf16); }

}  // namespace portile::mhc
