#include <portile/kernels/mhc/expand.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void expand::check(checker& c) const { check_mult(c); }

void expand::infer(inference& i) const { i.out("out", dtype::bf16); }

}  // namespace portile::mhc
