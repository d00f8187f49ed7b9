#include <portile/kernels/mhc/head_compute_mix.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void head_compute_mix::check(checker& c) const { check_mult(c); }

void head_compute_mix::infer(inference& i) const { i.out("out", dtype::f32); }

}  // namespace portile::mhc
