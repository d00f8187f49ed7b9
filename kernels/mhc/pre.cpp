#include <portile/kernels/mhc/pre.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void pre::check(checker& c) const {
  check_small_mult(c);
  check_hidden(c);
  c.need(n_splits >= 1, "n_splits", n_splits, "must be at least 1");
  check_repeat(c, "sinkhorn_repeat", sinkhorn_repeat);
}

void pre::infer(inference& i) const {
  i.out("post_mix", dtype::f32);
  i.out("comb_mix", dtype::f32);
  i.out("layer_input", dtype::bf16);
  if (!save_for_backward) return;
  for (const char* field : {"out_mul", "sqrsum", "pre_mix"}) i.out(field, dtype::f32);
}

}  // namespace portile::mhc
