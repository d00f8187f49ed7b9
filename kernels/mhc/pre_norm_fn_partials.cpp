#include <portile/kernels/mhc/pre_norm_fn_partials.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void pre_norm_fn_partials::check(checker& c) const {
  check_small_mult(c);
  check_hidden(c);
  if (!c.need(n_splits >= 1, "n_splits", n_splits, "must be at least 1")) return;
  const std::int64_t channels = c.dim("mhc_mult") * c.dim("hidden_size");
  c.need(rms_group_size >= 1 && channels % rms_group_size == 0 &&
             channels / rms_group_size == c.dim("n_rms_group"),
         "rms_group_size", rms_group_size,
         "times n_rms_group must be mhc_mult * hidden_size = " + std::to_string(channels));
}

void pre_norm_fn_partials::infer(inference& i) const {
  if (i.dim("n_rms_group") == 0 && rms_group_size > 0)
    i.bind("n_rms_group", i.dim("mhc_mult") * i.dim("hidden_size") / rms_group_size);
  i.out("out_mul_splitted", dtype::f32);
  i.out("sqrsum_splitted", dtype::f32);
}

}  // namespace portile::mhc
