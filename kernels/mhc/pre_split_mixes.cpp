#include <portile/kernels/mhc/pre_split_mixes.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void pre_split_mixes::check(checker& c) const { check_mult(c); }

void pre_split_mixes::infer(inference& i) const {
  if (i.dim("mhc_mult") == 0 && x.defined()) i.bind("mhc_mult", mult_of(x.extent(1)));
  for (const char* field : {"pre_mix", "post_mix", "comb_mix"}) i.out(field, dtype::f32);
}

}  // namespace portile::mhc
