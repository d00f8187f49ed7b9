#include <portile/kernels/mhc/head_compute_mix_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void head_compute_mix_backward::check(checker& c) const { check_mult(c); }

void head_compute_mix_backward::infer(inference& i) const {
  for (const char* field : {"x_grad", "scale_grad", "base_grad"}) i.out(field, dtype::f32);
}

}  // namespace portile::mhc
