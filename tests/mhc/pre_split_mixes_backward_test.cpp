#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::pre_split_mixes_backward;

namespace {

pre_split_mixes_backward good(memory& m, std::int64_t mult = 3) {
  pre_split_mixes_backward p;
  const std::int64_t mixes = mult * (mult + 2);
  p.x = fill(m.make(dtype::f32, {5, mixes}), 1);
  p.scale = fill(m.make(dtype::f32, {3}), 2);
  p.base = fill(m.make(dtype::f32, {mixes}), 3);
  p.pre_mix_grad = fill(m.make(dtype::f32, {5, mult}), 4);
  p.post_mix_grad = fill(m.make(dtype::f32, {5, mult}), 5);
  p.comb_mix_grad = fill(m.make(dtype::f32, {5, mult, mult}), 6);
  p.x_grad = m.make(dtype::f32, {5, mixes});
  p.scale_grad = fill(m.make(dtype::f32, {3}), 1, 0, std::nanf(""));
  p.base_grad = fill(m.make(dtype::f32, {mixes}), 1, 0, std::nanf(""));
  p.post_mult_value = 2;
  return p;
}

}  // namespace

TEST_CASE("mhc.pre_split_mixes_backward refuses bad problems") {
  expect_refusals<pre_split_mixes_backward>(
      [](memory& m) { return good(m); },
      {
          {"post_mix_grad absent", [](auto& p) { p.post_mix_grad = {}; },
           "post_mix_grad = absent: is required"},
          {"dtype", [](auto& p) { p.x_grad.dtype = dtype::bf16; }, "x_grad.dtype = bf16: must be f32"},
          {"columns of x", [](auto& p) { p.x.extents[1] = 14; },
           "x.extents[1] = 14: must be mhc_mult * (mhc_mult + 2) = 15", 1},
          {"length of scale_grad", [](auto& p) { p.scale_grad.extents[0] = 2; },
           "scale_grad.extents[0] = 2: must be 3"},
          {"length of base_grad", [](auto& p) { p.base_grad.extents[0] = 14; }, "base_grad.extents[0] = 14"},
          {"comb_mix_grad", [](auto& p) { p.comb_mix_grad.extents[1] = 2; },
           "comb_mix_grad.extents[1] = 2: must be mhc_mult = 3"},
          {"post_mix", [](auto& p) { p.post_mix = p.x; },
           "x.extents[1] = 15: must be mhc_mult * (mhc_mult + 2) = 255"},
      });
}

TEST_CASE("mhc.pre_split_mixes_backward is the derivative, and adds when asked") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 4, 8}) {
    memory m;
    pre_split_mixes_backward p = good(m, mult);
    run(q, p);
    const auto n = static_cast<std::size_t>(mult);
    const numbers x = values(p.x), scale = values(p.scale), base = values(p.base);
    const numbers pre = values(p.pre_mix_grad), post = values(p.post_mix_grad),
                  comb = values(p.comb_mix_grad);
    const auto loss = [&](const numbers& xs, const numbers& s, const numbers& b) {
      const model::mixes r = model::split(xs, s, b, n, 2, 0.25);
      return inner(pre, r.pre) + inner(post, r.post) + inner(comb, r.comb);
    };
    if (mult <= 4) {
      expect_gradient(
          "x_grad", x, values(p.x_grad), [&](const numbers& v) { return loss(v, scale, base); }, 1e-5, 1e-6);
      expect_gradient(
          "scale_grad", scale, values(p.scale_grad), [&](const numbers& v) { return loss(x, v, base); }, 1e-5,
          1e-6);
      expect_gradient(
          "base_grad", base, values(p.base_grad), [&](const numbers& v) { return loss(x, scale, v); }, 1e-5,
          1e-6);
    }
    expect_layout_freedom(p);
    copied<pre_split_mixes_backward> twice(p), with_post(p);
    twice.p.accumulate = true;
    run(q, twice.p);
    for (std::int64_t j = 0; j < p.base.numel(); ++j)
      CHECK(value(twice.p.base_grad, j) == Approx(2 * value(p.base_grad, j)).epsilon(1e-6));
    for (std::int64_t j = 0; j < 3; ++j)
      CHECK(value(twice.p.scale_grad, j) == Approx(2 * value(p.scale_grad, j)).epsilon(1e-6));
    with_post.p.post_mix = with_post.p.pre_mix_grad;  // not read
    run(q, with_post.p);
    CHECK(first_difference(with_post.p.x_grad, p.x_grad) == -1);

    copied<pre_split_mixes_backward> no_post(p);  // 0/0 in the peers' form
    no_post.p.post_mult_value = 0;
    run(q, no_post.p);
    for (double v : values(no_post.p.x_grad)) CHECK(std::isfinite(v));
    run(q, resized(p, "num_tokens", 0));
    for (double v : values(p.base_grad)) CHECK(v == 0);
    for (double v : values(p.scale_grad)) CHECK(v == 0);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("mhc.pre_split_mixes_backward keeps its digits over many tokens") {
  memory m;
  queue q{cpu_selector};
  const std::int64_t tokens = 8192;
  pre_split_mixes_backward p = good(m, 1);
  p.x = fill(m.make(dtype::f32, {tokens, 3}), 1);
  p.pre_mix_grad = fill(m.make(dtype::f32, {tokens, 1}), 4);
  p.post_mix_grad = fill(m.make(dtype::f32, {tokens, 1}), 5);
  p.comb_mix_grad = fill(m.make(dtype::f32, {tokens, 1, 1}), 6, 1, 1);
  p.x_grad = m.make(dtype::f32, {tokens, 3});
  run(q, p);
  double sum = 0, weighted = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    sum += value(p.comb_mix_grad, t);
    weighted += value(p.comb_mix_grad, t) * at<float>(p.x, t, 2);
  }
  CHECK(value(p.base_grad, 2) == Approx(sum).epsilon(1e-6));
  CHECK(value(p.scale_grad, 2) == Approx(weighted).epsilon(1e-6));
}
