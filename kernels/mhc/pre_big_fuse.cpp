#include <portile/kernels/mhc/pre_big_fuse.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void pre_big_fuse::check(checker& c) const {
  check_small_mult(c);
  check_hidden(c);
  c.need_both_or_none("out_mul_splitted", out_mul_splitted.defined(), "sqrsum_splitted",
                      sqrsum_splitted.defined());
  c.need(fn.defined() || out_mul_splitted.defined(), "fn", fn,
         "fn, or out_mul_splitted and sqrsum_splitted, must be given");
  c.need(!out_mul_splitted.defined() || c.dim("n_splits") >= 1, "n_splits", c.dim("n_splits"),
         "must be at least 1");
  c.need(fn_splits >= 1, "fn_splits", fn_splits, "must be at least 1");
  check_repeat(c, "sinkhorn_repeat", sinkhorn_repeat);
}

void pre_big_fuse::infer(inference& i) const {
  i.out("post_mix", dtype::f32);
  i.out("comb_mix", dtype::f32);
  i.out("layer_input", dtype::bf16);
}

}  // namespace portile::mhc
