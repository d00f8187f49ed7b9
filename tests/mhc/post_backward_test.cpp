#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::post_backward;

namespace {

post_backward good(memory& m, std::int64_t mult = 3, std::int64_t hidden = 16) {
  post_backward p;
  p.x = fill(m.make(dtype::bf16, {5, hidden}), 1);
  p.residual = fill(m.make(dtype::bf16, {5, mult, hidden}), 2);
  p.post_mix = fill(m.make(dtype::f32, {5, mult}), 3);
  p.comb_mix = fill(m.make(dtype::f32, {5, mult, mult}), 4);
  p.out_grad = fill(m.make(dtype::bf16, {5, mult, hidden}), 5);
  p.x_grad = m.make(dtype::bf16, {5, hidden});
  p.residual_grad = m.make(dtype::bf16, {5, mult, hidden});
  p.post_mix_grad = m.make(dtype::f32, {5, mult});
  p.comb_mix_grad = m.make(dtype::f32, {5, mult, mult});
  return p;
}

}  // namespace

TEST_CASE("mhc.post_backward refuses bad problems") {
  expect_refusals<post_backward>(
      [](memory& m) { return good(m); },
      {
          {"comb_mix absent", [](auto& p) { p.comb_mix = {}; }, "comb_mix = absent: is required"},
          {"dtype", [](auto& p) { p.out_grad.dtype = dtype::f16; }, "out_grad.dtype = f16: must be bf16"},
          {"streams", [](auto& p) { p.comb_mix_grad.extents[1] = 2; },
           "comb_mix_grad.extents[1] = 2: must be mhc_mult = 3"},
          {"shape of out_grad", [](auto& p) { p.out_grad.extents[2] = 8; },
           "out_grad.extents[2] = 8: must be hidden_size = 16"},
          {"hidden_size",
           [](auto& p) {
             p.x.extents[1] = p.x_grad.extents[1] = p.residual.extents[2] = p.out_grad.extents[2] =
                 p.residual_grad.extents[2] = 10;
           },
           "hidden_size = 10: must be a positive multiple of 8", 1},
          {"in place", [](auto& p) { p.residual_grad = p.out_grad; }, "must not be the buffer of out_grad"},
      });
}

TEST_CASE("mhc.post_backward is the derivative, streams added in order") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 4, 8, 9}) {
    memory m;
    post_backward p = good(m, mult);
    run(q, p);
    const auto n = static_cast<std::size_t>(mult);
    const numbers x = values(p.x), r = values(p.residual), post = values(p.post_mix),
                  comb = values(p.comb_mix), g = values(p.out_grad);
    if (mult <= 3) {
      expect_gradient(
          "x_grad", x, values(p.x_grad),
          [&](const numbers& v) { return inner(g, model::post(v, r, post, comb, n)); }, 0.004, 1e-6);
      expect_gradient(
          "residual_grad", r, values(p.residual_grad),
          [&](const numbers& v) { return inner(g, model::post(x, v, post, comb, n)); }, 0.004, 1e-6);
      expect_gradient(
          "post_mix_grad", post, values(p.post_mix_grad),
          [&](const numbers& v) { return inner(g, model::post(x, r, v, comb, n)); }, 1e-5, 1e-6);
      expect_gradient(
          "comb_mix_grad", comb, values(p.comb_mix_grad),
          [&](const numbers& v) { return inner(g, model::post(x, r, post, v, n)); }, 1e-5, 1e-6);
    }
    for (std::int64_t k = 0; k < p.residual.numel(); ++k) {
      const std::int64_t row = k / 16, t = row / mult;
      float sum = 0;
      for (std::int64_t o = 0; o < mult; ++o)
        sum = std::fma(static_cast<float>(value(p.comb_mix, row * mult + o)),
                       static_cast<float>(value(p.out_grad, (t * mult + o) * 16 + k % 16)), sum);
      REQUIRE(value(p.residual_grad, k) == numeric::to_float(numeric::to_bf16(sum)));
    }
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    copied<post_backward> without(p);
    without.p.residual_grad = {};
    run(q, without.p);
    CHECK(first_difference(without.p.x_grad, p.x_grad) == -1);
    CHECK(first_difference(without.p.comb_mix_grad, p.comb_mix_grad) == -1);
    CHECK(m.guards_intact());
  }
}
