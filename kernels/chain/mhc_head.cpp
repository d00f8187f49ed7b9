#include <portile/kernels/chain/mhc_head.hpp>
#include <portile/kernels/chain/steps.hpp>
#include <portile/kernels/mhc/block_backward.hpp>
#include <portile/kernels/mhc/head_compute_mix.hpp>
#include <portile/kernels/mhc/head_compute_mix_backward.hpp>
#include <portile/kernels/mhc/pre_apply_mix.hpp>
#include <portile/kernels/mhc/pre_apply_mix_backward.hpp>
#include <portile/kernels/mhc/pre_norm_fn.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::chain {

void mhc_head::check(checker& c) const {
  if (!mhc::check_small_mult(c) || !mhc::check_hidden(c)) return;
  c.need(n_splits >= 1, "n_splits", n_splits, "must be at least 1");
  check_mixing_gradients(c, *this);
}

void mhc_head::infer(inference& i) const {
  i.out("out", dtype::bf16);
  if (!out_grad) return;
  i.out("residual_grad", dtype::bf16);
  i.out("fn_grad", dtype::f32);
  if (norm_weight) i.out("norm_weight_grad", dtype::f32);
  i.out("scale_grad", dtype::f32);
  i.out("base_grad", dtype::f32);
}

void mhc_head::compose(composer& c) const {
  const std::int64_t tokens = residual.extent(0), mult = residual.extent(1), hidden = residual.extent(2);
  using enum dtype;

  const tensor out_mul = c.temporary(f32, {tokens, mult}), sqrsum = c.temporary(f32, {tokens}),
               logits = c.temporary(f32, {tokens, mult});
  c.run(mhc::pre_norm_fn{.residual = residual,
                         .fn = fn,
                         .norm_weight = norm_weight,
                         .out_mul = out_mul,
                         .sqrsum = sqrsum,
                         .out = logits,
                         .norm_eps = norm_eps,
                         .n_splits = n_splits,
                         .head = true});
  const tensor mix = c.temporary(f32, {tokens, mult});
  c.run(mhc::head_compute_mix{.x = logits, .scale = scale, .base = base, .out = mix, .pre_eps = pre_eps});
  c.run(mhc::pre_apply_mix{.x = residual, .mix = mix, .out = out});

  if (!has_gradients(*this)) return;
  const tensor mix_grad = c.temporary(f32, {tokens, mult}), logits_grad = c.temporary(f32, {tokens, mult});
  c.run(mhc::pre_apply_mix_backward{.x = residual, .mix = mix, .out_grad = out_grad, .mix_grad = mix_grad});
  c.run(mhc::head_compute_mix_backward{.x = logits,
                                       .scale = scale,
                                       .base = base,
                                       .out_grad = mix_grad,
                                       .x_grad = logits_grad,
                                       .scale_grad = or_temporary(c, scale_grad, f32, {1}),
                                       .base_grad = or_temporary(c, base_grad, f32, {mult}),
                                       .accumulate = accumulate && scale_grad});
  c.run(mhc::block_backward{.residual = residual,
                            .fn = fn,
                            .norm_weight = norm_weight,
                            .out_mul = out_mul,
                            .sqrsum = sqrsum,
                            .mixes_grad = logits_grad,
                            .pre_mix = mix,
                            .layer_input_grad = out_grad,
                            .residual_grad = or_temporary(c, residual_grad, bf16, {tokens, mult, hidden}),
                            .fn_grad = fn_grad,
                            .norm_weight_grad = norm_weight_grad,
                            .norm_eps = norm_eps,
                            .head = true,
                            .accumulate = accumulate});
}

}  // namespace portile::chain
