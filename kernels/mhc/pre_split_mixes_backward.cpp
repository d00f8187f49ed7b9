#include <portile/kernels/mhc/pre_split_mixes_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void pre_split_mixes_backward::check(checker& c) const { check_mult(c); }

void pre_split_mixes_backward::infer(inference& i) const {
  for (const char* field : {"x_grad", "scale_grad", "base_grad"}) i.out(field, dtype::f32);
}

}  // namespace portile::mhc
