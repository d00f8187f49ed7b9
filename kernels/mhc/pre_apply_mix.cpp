#include <portile/kernels/mhc/pre_apply_mix.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void pre_apply_mix::check(checker& c) const {
  check_mult(c);
  check_hidden(c);
}

void pre_apply_mix::infer(inference& i) const { i.out("out", dtype::bf16); }

}  // namespace portile::mhc
