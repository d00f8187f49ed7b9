#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::block_backward;

namespace {

// A block over y = layer_input: its forward pass, then everything that block_backward needs from the other
// gradients.
struct block {
  mhc::pre pre;
  mhc::post post;
  mhc::post_backward post_backward;
  mhc::pre_apply_mix_backward apply_backward;
  mhc::sinkhorn_backward sinkhorn_backward;
  mhc::pre_split_mixes_backward split_backward;
  block_backward p;
};

block make(memory& m, std::int64_t tokens, std::int64_t mult, bool weight) {
  const std::int64_t hidden = 8, channels = mult * hidden, mixes = mult * (mult + 2);
  queue q{cpu_selector};
  block b;
  b.pre.residual = fill(m.make(dtype::bf16, {tokens, mult, hidden}), 1);
  b.pre.fn = fill(m.make(dtype::f32, {mixes, channels}), 2, 0.3f);
  if (weight) b.pre.norm_weight = fill(m.make(dtype::f32, {channels}), 3, 0.2f, 1);
  b.pre.scale = fill(m.make(dtype::f32, {3}), 4, 0.3f, 1);
  b.pre.base = fill(m.make(dtype::f32, {mixes}), 5);
  b.pre.post_mix = m.make(dtype::f32, {tokens, mult});
  b.pre.comb_mix = m.make(dtype::f32, {tokens, mult, mult});
  b.pre.layer_input = m.make(dtype::bf16, {tokens, hidden});
  b.pre.out_mul = m.make(dtype::f32, {tokens, mixes});
  b.pre.sqrsum = m.make(dtype::f32, {tokens});
  b.pre.pre_mix = m.make(dtype::f32, {tokens, mult});
  b.pre.norm_eps = 0.125;
  b.pre.sinkhorn_eps = 1e-2;
  b.pre.sinkhorn_repeat = 3;
  b.pre.post_mult_value = 2;
  run(q, b.pre);
  b.post.x = b.pre.layer_input;
  b.post.residual = b.pre.residual;
  b.post.post_mix = b.pre.post_mix;
  b.post.comb_mix = b.pre.comb_mix;
  b.post.out = m.make(dtype::bf16, {tokens, mult, hidden});
  run(q, b.post);
  auto& pb = b.post_backward;
  pb.x = b.post.x;
  pb.residual = b.post.residual;
  pb.post_mix = b.post.post_mix;
  pb.comb_mix = b.post.comb_mix;
  pb.out_grad = fill(m.make(dtype::bf16, {tokens, mult, hidden}), 6);
  pb.x_grad = m.make(dtype::bf16, {tokens, hidden});
  pb.post_mix_grad = m.make(dtype::f32, {tokens, mult});
  pb.comb_mix_grad = m.make(dtype::f32, {tokens, mult, mult});
  run(q, pb);
  auto& ab = b.apply_backward;
  ab.x = b.pre.residual;
  ab.mix = b.pre.pre_mix;
  ab.out_grad = pb.x_grad;  // the layer is the identity
  ab.mix_grad = m.make(dtype::f32, {tokens, mult});
  run(q, ab);
  // The logits again: out_mul * r.
  tensor logits = m.make(dtype::f32, {tokens, mixes}), comb_logits = m.make(dtype::f32, {tokens, mult, mult});
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < mixes; ++j)
      at<float>(logits, t, j) = at<float>(b.pre.out_mul, t, j) /
                                std::sqrt(at<float>(b.pre.sqrsum, t) / static_cast<float>(channels) + 0.125f);
  mhc::pre_split_mixes split;
  split.x = logits;
  split.scale = b.pre.scale;
  split.base = b.pre.base;
  split.pre_mix = m.make(dtype::f32, {tokens, mult});
  split.post_mix = m.make(dtype::f32, {tokens, mult});
  split.comb_mix = comb_logits;
  run(q, split);
  auto& sb = b.sinkhorn_backward;
  sb.x = comb_logits;
  sb.out_grad = pb.comb_mix_grad;
  sb.x_grad = m.make(dtype::f32, {tokens, mult, mult});
  sb.eps = b.pre.sinkhorn_eps;
  sb.repeat = b.pre.sinkhorn_repeat;
  run(q, sb);
  auto& xb = b.split_backward;
  xb.x = logits;
  xb.scale = b.pre.scale;
  xb.base = b.pre.base;
  xb.pre_mix_grad = ab.mix_grad;
  xb.post_mix_grad = pb.post_mix_grad;
  xb.comb_mix_grad = sb.x_grad;
  xb.x_grad = m.make(dtype::f32, {tokens, mixes});
  xb.scale_grad = m.make(dtype::f32, {3});
  xb.base_grad = m.make(dtype::f32, {mixes});
  xb.post_mult_value = b.pre.post_mult_value;
  run(q, xb);
  b.p.residual = b.pre.residual;
  b.p.fn = b.pre.fn;
  b.p.norm_weight = b.pre.norm_weight;
  b.p.out_mul = b.pre.out_mul;
  b.p.sqrsum = b.pre.sqrsum;
  b.p.mixes_grad = xb.x_grad;
  b.p.pre_mix = b.pre.pre_mix;
  b.p.layer_input_grad = pb.x_grad;
  b.p.comb_mix = b.pre.comb_mix;
  b.p.out_grad = pb.out_grad;
  b.p.residual_grad = m.make(dtype::bf16, {tokens, mult, hidden});
  b.p.fn_grad = fill(m.make(dtype::f32, {mixes, channels}), 1, 0, std::nanf(""));
  if (weight) b.p.norm_weight_grad = fill(m.make(dtype::f32, {channels}), 1, 0, std::nanf(""));
  b.p.norm_eps = b.pre.norm_eps;
  return b;
}
block_backward good(memory& m) { return make(m, 5, 3, true).p; }

}  // namespace

TEST_CASE("mhc.block_backward refuses bad problems") {
  expect_refusals<block_backward>(
      good,
      {
          {"mixes_grad absent", [](auto& p) { p.mixes_grad = {}; }, "mixes_grad = absent: is required"},
          {"out_grad absent", [](auto& p) { p.out_grad = {}; }, "out_grad = absent: is required without head",
           4},
          {"comb_mix absent", [](auto& p) { p.comb_mix = {}; }, "comb_mix = absent: is required without head",
           4},
          {"head with a post",
           [](auto& p) {
             p.head = true;
             p.fn.extents[0] = p.fn_grad.extents[0] = p.out_mul.extents[1] = p.mixes_grad.extents[1] = 3;
           },
           "must be absent with head", 4},
          {"head with out_grad",
           [](auto& p) {
             p.head = true;
             p.comb_mix = {};
             p.fn.extents[0] = p.fn_grad.extents[0] = p.out_mul.extents[1] = p.mixes_grad.extents[1] = 3;
           },
           "out_grad = ", 4},
          {"dtype", [](auto& p) { p.layer_input_grad.dtype = dtype::f16; },
           "layer_input_grad.dtype = f16: must be bf16"},
          {"rows of fn", [](auto& p) { p.fn.extents[0] = 14; }, "fn.extents[0] = 14"},
          {"hidden_size",
           [](auto& p) {
             p.residual.extents[2] = p.residual_grad.extents[2] = p.out_grad.extents[2] =
                 p.layer_input_grad.extents[1] = 7;
             p.fn.extents[1] = p.fn_grad.extents[1] = p.norm_weight.extents[0] =
                 p.norm_weight_grad.extents[0] = 21;
           },
           "hidden_size = 7: must be a positive multiple of 8", 1},
          {"mhc_mult 9",
           [](auto& p) {
             for (tensor* t : {&p.residual, &p.residual_grad, &p.out_grad, &p.comb_mix, &p.pre_mix})
               t->extents[1] = 9;
             for (tensor* t : {&p.residual, &p.residual_grad, &p.out_grad, &p.comb_mix, &p.pre_mix,
                               &p.out_mul, &p.sqrsum, &p.mixes_grad, &p.layer_input_grad})
               t->extents[0] = 0;
             p.comb_mix.extents[2] = p.comb_mix.strides[1] = 9;
             p.fn.extents = p.fn_grad.extents = {99, 72};
             p.fn.strides = p.fn_grad.strides = {72, 1};
             p.norm_weight.extents[0] = p.norm_weight_grad.extents[0] = 72;
             p.out_mul.extents[1] = p.mixes_grad.extents[1] = 99;
           },
           "mhc_mult = 9: must be at most 8", 2},
          {"mhc_mult 0",
           [](auto& p) {
             for (tensor* t : {&p.residual, &p.residual_grad, &p.out_grad, &p.comb_mix, &p.pre_mix,
                               &p.out_mul, &p.mixes_grad})
               t->extents[1] = 0;
             p.comb_mix.extents[2] = p.norm_weight.extents[0] = p.norm_weight_grad.extents[0] = 0;
             p.fn.extents = p.fn_grad.extents = {0, 0};
           },
           "mhc_mult = 0: must be at least 1", 2},
          {"gradient of an absent weight", [](auto& p) { p.norm_weight = {}; },
           "must be absent: norm_weight is", 3},
          {"in place", [](auto& p) { p.residual_grad = p.out_grad; },
           "must not be the buffer of out_grad or residual"},
      });
}

TEST_CASE("mhc.block_backward ends the gradient of a whole block") {
  for (std::int64_t mult = 1; mult <= 4; ++mult)
    for (const bool weight : {false, true}) {
      memory m;
      queue q{cpu_selector};
      const block b = make(m, 2, mult, weight);
      run(q, b.p);
      const auto n = static_cast<std::size_t>(mult);
      const numbers r = values(b.pre.residual), fn = values(b.pre.fn), scale = values(b.pre.scale),
                    base = values(b.pre.base);
      const numbers w = weight ? values(b.pre.norm_weight) : numbers(n * 8, 1), g = values(b.p.out_grad);
      const auto loss = [&](const numbers& rs, const numbers& fns, const numbers& ws, const numbers& scales,
                            const numbers& bases) {
        const model::mixes x = model::split(model::norm_fn(rs, model::merged(fns, ws), ws.size(), 0.125),
                                            scales, bases, n, 2, 1e-6);
        const numbers y = model::apply(rs, x.pre, n);
        return inner(g, model::post(y, rs, x.post, model::sinkhorn(x.comb, n, 3, 1e-2), n));
      };
      expect_gradient(
          "residual_grad", r, values(b.p.residual_grad),
          [&](const numbers& v) { return loss(v, fn, w, scale, base); }, 0.02, 0.01);
      expect_gradient(
          "fn_grad", fn, values(b.p.fn_grad), [&](const numbers& v) { return loss(r, v, w, scale, base); },
          0.02, 0.01);
      if (weight)
        expect_gradient(
            "norm_weight_grad", w, values(b.p.norm_weight_grad),
            [&](const numbers& v) { return loss(r, fn, v, scale, base); }, 0.02, 0.01);
      expect_gradient(
          "scale_grad", scale, values(b.split_backward.scale_grad),
          [&](const numbers& v) { return loss(r, fn, w, v, base); }, 0.05, 0.03);
      expect_gradient(
          "base_grad", base, values(b.split_backward.base_grad),
          [&](const numbers& v) { return loss(r, fn, w, scale, v); }, 0.05, 0.03);
    }
}

TEST_CASE("mhc.block_backward is one rounding of what the separate operations add up") {
  queue q{cpu_selector};
  for (std::int64_t mult = 1; mult <= 8; ++mult) {
    memory m;
    const block b = make(m, 5, mult, true);
    run(q, b.p);
    expect_layout_freedom(b.p);

    // The buffer-passing chain: three roundings in one bf16 buffer.
    copied<mhc::post_backward> post(b.post_backward);
    post.p.residual_grad = m.make(dtype::bf16, {5, mult, 8});
    run(q, post.p);
    mhc::pre_apply_mix_backward apply = b.apply_backward;
    apply.x_grad = post.p.residual_grad;
    apply.accumulate = true;
    run(q, apply);
    mhc::pre_norm_fn_backward norm;
    norm.residual = b.p.residual;
    norm.fn = b.p.fn;
    norm.norm_weight = b.p.norm_weight;
    norm.out_mul = b.p.out_mul;
    norm.sqrsum = b.p.sqrsum;
    norm.out_grad = b.p.mixes_grad;
    norm.norm_eps = b.p.norm_eps;
    norm.residual_grad = post.p.residual_grad;
    norm.fn_grad = m.make(dtype::f32, {mult * (mult + 2), mult * 8});
    norm.norm_weight_grad = m.make(dtype::f32, {mult * 8});
    run(q, norm);
    double largest = 0;
    for (double v : values(b.p.residual_grad)) largest = std::max(largest, std::fabs(v));
    for (std::int64_t k = 0; k < b.p.residual.numel(); ++k)
      CHECK(value(b.p.residual_grad, k) == Approx(value(norm.residual_grad, k)).margin(0.012 * largest));
    CHECK(first_difference(norm.fn_grad, b.p.fn_grad) == -1);
    CHECK(first_difference(norm.norm_weight_grad, b.p.norm_weight_grad) == -1);

    copied<block_backward> bare(b.p), twice(b.p);
    bare.p.fn_grad = bare.p.norm_weight_grad = {};
    run(q, bare.p);
    CHECK(first_difference(bare.p.residual_grad, b.p.residual_grad) == -1);
    twice.p.accumulate = true;
    run(q, twice.p);
    for (std::int64_t k = 0; k < b.p.fn.numel(); ++k)
      CHECK(value(twice.p.fn_grad, k) == Approx(2 * value(b.p.fn_grad, k)).epsilon(1e-6));

    run(q, resized(b.p, "num_tokens", 0));
    for (double v : values(b.p.fn_grad)) REQUIRE(v == 0);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("mhc.block_backward of a head has no streams behind it") {
  memory m;
  queue q{cpu_selector};
  block_backward p = make(m, 5, 3, true).p;
  p.head = true;
  p.out_grad = p.comb_mix = {};
  p.fn.extents[0] = p.fn_grad.extents[0] = p.out_mul.extents[1] = p.mixes_grad.extents[1] = 3;
  run(q, p);
  expect_layout_freedom(p);
  // The same with the gradients of all other mixes at zero, and with nothing coming from behind.
  block_backward padded = make(m, 5, 3, true).p;
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t j = 3; j < 15; ++j) at<float>(padded.mixes_grad, t, j) = 0;
  fill(padded.comb_mix, 1, 0, 0);
  run(q, padded);
  CHECK(first_difference(padded.residual_grad, p.residual_grad) == -1);
  tensor first = padded.fn_grad;
  first.extents[0] = 3;
  CHECK(first_difference(first, p.fn_grad) == -1);
  CHECK(m.guards_intact());
}
