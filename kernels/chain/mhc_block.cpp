#include <portile/core/aliasing.hpp>
#include <portile/kernels/chain/mhc_block.hpp>
#include <portile/kernels/chain/steps.hpp>
#include <portile/kernels/mhc/block_backward.hpp>
#include <portile/kernels/mhc/fn_normw_merge.hpp>
#include <portile/kernels/mhc/post.hpp>
#include <portile/kernels/mhc/post_backward.hpp>
#include <portile/kernels/mhc/pre_apply_mix.hpp>
#include <portile/kernels/mhc/pre_apply_mix_backward.hpp>
#include <portile/kernels/mhc/pre_norm_fn.hpp>
#include <portile/kernels/mhc/pre_split_mixes.hpp>
#include <portile/kernels/mhc/pre_split_mixes_backward.hpp>
#include <portile/kernels/mhc/sinkhorn.hpp>
#include <portile/kernels/mhc/sinkhorn_backward.hpp>
#include <portile/kernels/mhc/sizes.hpp>
#include <portile/kernels/quant/cast.hpp>

namespace portile::chain {
namespace {

// bf16(x * weight), channel by channel, the product in fp32: the layer, and its gradient.
tensor scaled_channels(composer& c, const tensor& x, const tensor& weight) {
  const std::int64_t tokens = x.extent(0), hidden = x.extent(1);
  const tensor wide = c.temporary(dtype::f32, {tokens, hidden}),
               product = c.temporary(dtype::f32, {tokens, hidden});
  const tensor result = c.temporary(dtype::bf16, {tokens, hidden});
  c.run(quant::cast{.x = x, .out = wide});
  c.run(mhc::fn_normw_merge{.fn = wide, .norm_weight = weight, .out = product});
  c.run(quant::cast{.x = product, .out = result});
  return result;
}

}  // namespace

void mhc_block::check(checker& c) const {
  if (!mhc::check_small_mult(c) || !mhc::check_hidden(c)) return;
  c.need(n_splits >= 1, "n_splits", n_splits, "must be at least 1");
  mhc::check_repeat(c, "sinkhorn_repeat", sinkhorn_repeat);
  c.need(!same_buffer(out, residual), "out.data", out, "must not be the buffer of residual");
  check_mixing_gradients(c, *this);
}

void mhc_block::infer(inference& i) const {
  i.out("layer_input", dtype::bf16);
  i.out("post_mix", dtype::f32);
  i.out("comb_mix", dtype::f32);
  i.out("out", dtype::bf16);
  if (!out_grad) return;
  i.out("residual_grad", dtype::bf16);
  i.out("fn_grad", dtype::f32);
  if (norm_weight) i.out("norm_weight_grad", dtype::f32);
  i.out("scale_grad", dtype::f32);
  i.out("base_grad", dtype::f32);
}

void mhc_block::compose(composer& c) const {
  const std::int64_t tokens = residual.extent(0), mult = residual.extent(1), hidden = residual.extent(2);
  const std::int64_t mixes = mhc::mixes_of(mult);
  using enum dtype;

  const tensor out_mul = c.temporary(f32, {tokens, mixes}), sqrsum = c.temporary(f32, {tokens}),
               logits = c.temporary(f32, {tokens, mixes});
  c.run(mhc::pre_norm_fn{.residual = residual,
                         .fn = fn,
                         .norm_weight = norm_weight,
                         .out_mul = out_mul,
                         .sqrsum = sqrsum,
                         .out = logits,
                         .norm_eps = norm_eps,
                         .n_splits = n_splits});
  const tensor pre = c.temporary(f32, {tokens, mult}), comb_logits = c.temporary(f32, {tokens, mult, mult});
  const tensor post = or_temporary(c, post_mix, f32, {tokens, mult}),
               comb = or_temporary(c, comb_mix, f32, {tokens, mult, mult});
  c.run(mhc::pre_split_mixes{.x = logits,
                             .scale = scale,
                             .base = base,
                             .pre_mix = pre,
                             .post_mix = post,
                             .comb_mix = comb_logits,
                             .post_mult_value = post_mult_value,
                             .pre_eps = pre_eps});
  c.run(mhc::sinkhorn{.x = comb_logits, .out = comb, .repeat = sinkhorn_repeat, .eps = sinkhorn_eps});
  const tensor input = or_temporary(c, layer_input, bf16, {tokens, hidden});
  c.run(mhc::pre_apply_mix{.x = residual, .mix = pre, .out = input});
  const tensor y = scaled_channels(c, input, layer_weight);
  c.run(mhc::post{.x = y, .residual = residual, .post_mix = post, .comb_mix = comb, .out = out});

  if (!has_gradients(*this)) return;
  const tensor y_grad = c.temporary(bf16, {tokens, hidden});
  const tensor pre_grad = c.temporary(f32, {tokens, mult}), post_grad = c.temporary(f32, {tokens, mult});
  const tensor comb_grad = c.temporary(f32, {tokens, mult, mult}),
               comb_logits_grad = c.temporary(f32, {tokens, mult, mult});
  c.run(mhc::post_backward{.x = y,
                           .residual = residual,
                           .post_mix = post,
                           .comb_mix = comb,
                           .out_grad = out_grad,
                           .x_grad = y_grad,
                           .post_mix_grad = post_grad,
                           .comb_mix_grad = comb_grad});
  const tensor input_grad = scaled_channels(c, y_grad, layer_weight);
  c.run(mhc::pre_apply_mix_backward{.x = residual, .mix = pre, .out_grad = input_grad, .mix_grad = pre_grad});
  c.run(mhc::sinkhorn_backward{.x = comb_logits,
                               .out_grad = comb_grad,
                               .x_grad = comb_logits_grad,
                               .repeat = sinkhorn_repeat,
                               .eps = sinkhorn_eps});
  const tensor mixes_grad = c.temporary(f32, {tokens, mixes});
  c.run(mhc::pre_split_mixes_backward{.x = logits,
                                      .scale = scale,
                                      .base = base,
                                      .pre_mix_grad = pre_grad,
                                      .post_mix_grad = post_grad,
                                      .comb_mix_grad = comb_logits_grad,
                                      .x_grad = mixes_grad,
                                      .scale_grad = or_temporary(c, scale_grad, f32, {3}),
                                      .base_grad = or_temporary(c, base_grad, f32, {mixes}),
                                      .post_mult_value = post_mult_value,
                                      .accumulate = accumulate && scale_grad});
  c.run(mhc::block_backward{.residual = residual,
                            .fn = fn,
                            .norm_weight = norm_weight,
                            .out_mul = out_mul,
                            .sqrsum = sqrsum,
                            .mixes_grad = mixes_grad,
                            .pre_mix = pre,
                            .layer_input_grad = input_grad,
                            .comb_mix = comb,
                            .out_grad = out_grad,
                            .residual_grad = or_temporary(c, residual_grad, bf16, {tokens, mult, hidden}),
                            .fn_grad = fn_grad,
                            .norm_weight_grad = norm_weight_grad,
                            .norm_eps = norm_eps,
                            .accumulate = accumulate});
}

}  // namespace portile::chain
