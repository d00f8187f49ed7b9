#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::pre_norm_fn;
using mhc::pre_norm_fn_backward;

namespace {

pre_norm_fn_backward good(memory& m, std::int64_t tokens, std::int64_t mult, bool weight, bool head) {
  const std::int64_t hidden = 8, mixes = mult * (head ? 1 : mult + 2);
  pre_norm_fn f;
  f.residual = fill(m.make(dtype::bf16, {tokens, mult, hidden}), 1);
  f.fn = fill(m.make(dtype::f32, {mixes, mult * hidden}), 2);
  if (weight) f.norm_weight = fill(m.make(dtype::f32, {mult * hidden}), 3, 0.2f, 1);
  f.out_mul = m.make(dtype::f32, {tokens, mixes});
  f.sqrsum = m.make(dtype::f32, {tokens});
  f.out = m.make(dtype::f32, {tokens, mixes});
  f.norm_eps = 0.125;
  f.head = head;
  queue q{cpu_selector};
  run(q, f);
  pre_norm_fn_backward p;
  p.residual = f.residual;
  p.fn = f.fn;
  p.norm_weight = f.norm_weight;
  p.out_mul = f.out_mul;
  p.sqrsum = f.sqrsum;
  p.norm_eps = f.norm_eps;
  p.head = head;
  p.out_grad = fill(m.make(dtype::f32, {tokens, mixes}), 4);
  p.residual_grad = fill(m.make(dtype::bf16, {tokens, mult, hidden}), 1, 0, 0);
  p.fn_grad = fill(m.make(dtype::f32, {mixes, mult * hidden}), 1, 0, std::nanf(""));
  if (weight) p.norm_weight_grad = fill(m.make(dtype::f32, {mult * hidden}), 1, 0, std::nanf(""));
  return p;
}

}  // namespace

TEST_CASE("mhc.pre_norm_fn_backward refuses bad problems") {
  expect_refusals<pre_norm_fn_backward>(
      [](memory& m) { return good(m, 5, 3, true, false); },
      {
          {"sqrsum absent", [](auto& p) { p.sqrsum = {}; }, "sqrsum = absent: is required"},
          {"dtype of residual_grad", [](auto& p) { p.residual_grad.dtype = dtype::f16; },
           "residual_grad.dtype = f16: must be bf16"},
          {"dtype of fn_grad", [](auto& p) { p.fn_grad.dtype = dtype::i32; },
           "fn_grad.dtype = i32: must be f32"},
          {"rows of fn", [](auto& p) { p.fn.extents[0] = 14; }, "fn.extents[0] = 14"},
          {"shape of out_grad", [](auto& p) { p.out_grad.extents[1] = 14; }, "out_grad.extents[1] = 14"},
          {"hidden_size",
           [](auto& p) {
             p.residual.extents[2] = p.residual_grad.extents[2] = 7;
             p.fn.extents[1] = p.fn_grad.extents[1] = p.norm_weight.extents[0] =
                 p.norm_weight_grad.extents[0] = 21;
           },
           "hidden_size = 7: must be a positive multiple of 8", 1},
          {"mhc_mult 9",
           [](auto& p) {
             p.residual.extents[1] = p.residual_grad.extents[1] = 9;
             p.residual.strides[0] = p.residual_grad.strides[0] = 72;
             p.fn.extents = p.fn_grad.extents = {99, 72};
             p.fn.strides = p.fn_grad.strides = {72, 1};
             p.norm_weight.extents[0] = p.norm_weight_grad.extents[0] = 72;
             p.out_grad.extents[1] = p.out_mul.extents[1] = 99;
           },
           "mhc_mult = 9: must be at most 8", 2},
          {"mhc_mult 0",
           [](auto& p) {
             p.residual.extents[1] = p.residual_grad.extents[1] = p.out_grad.extents[1] =
                 p.out_mul.extents[1] = 0;
             p.norm_weight.extents[0] = p.norm_weight_grad.extents[0] = 0;
             p.fn.extents = p.fn_grad.extents = {0, 0};
           },
           "mhc_mult = 0: must be at least 1", 2},
          {"gradient of an absent weight", [](auto& p) { p.norm_weight = {}; },
           "must be absent: norm_weight is", 3},
      });
}

TEST_CASE("mhc.pre_norm_fn_backward is the derivative for every mhc_mult") {
  queue q{cpu_selector};
  for (std::int64_t mult = 1; mult <= 8; ++mult)
    for (const bool weight : {false, true}) {
      memory m;
      const bool head = weight && mult == 4;
      pre_norm_fn_backward p = good(m, 3, mult, weight, head);
      run(q, p);
      const numbers r = values(p.residual), fn = values(p.fn), g = values(p.out_grad);
      const numbers w = weight ? values(p.norm_weight) : numbers(static_cast<std::size_t>(mult * 8), 1);
      const auto loss = [&](const numbers& rs, const numbers& fns, const numbers& ws) {
        return inner(g, model::norm_fn(rs, model::merged(fns, ws), ws.size(), 0.125));
      };
      if (mult <= 4) {
        expect_gradient(
            "residual_grad", r, values(p.residual_grad), [&](const numbers& v) { return loss(v, fn, w); },
            0.01, 0.003);
        expect_gradient(
            "fn_grad", fn, values(p.fn_grad), [&](const numbers& v) { return loss(r, v, w); }, 1e-3, 1e-3);
        if (weight)
          expect_gradient(
              "norm_weight_grad", w, values(p.norm_weight_grad),
              [&](const numbers& v) { return loss(r, fn, v); }, 1e-3, 1e-3);
      }
      expect_layout_freedom(p);

      // Added to what is there, before the one rounding; or overwritten without being read.
      copied<pre_norm_fn_backward> added(p), over(p);
      fill(added.p.residual_grad, 5);
      const numbers before = values(added.p.residual_grad);
      added.p.accumulate = true;
      run(q, added.p);
      for (std::int64_t k = 0; k < p.residual.numel(); ++k) {
        const double want = before[static_cast<std::size_t>(k)] + value(p.residual_grad, k);
        // Two roundings apart, each of at most 2^-8.
        CHECK(std::fabs(value(added.p.residual_grad, k) - want) <=
              0.004 * (std::fabs(want) + std::fabs(value(p.residual_grad, k))));
      }
      for (std::int64_t k = 0; k < p.fn.numel(); ++k)
        CHECK(value(added.p.fn_grad, k) == Approx(2 * value(p.fn_grad, k)).epsilon(1e-6));
      fill(over.p.residual_grad, 1, 0, std::nanf(""));
      over.p.accumulate_residual = false;
      run(q, over.p);
      CHECK(first_difference(over.p.residual_grad, p.residual_grad) == -1);

      // No tokens: zero parameter gradients, or unchanged ones.
      pre_norm_fn_backward none = resized(p, "num_tokens", 0);
      none.accumulate = true;
      const numbers kept = values(p.fn_grad);
      run(q, none);
      CHECK(values(p.fn_grad) == kept);
      none.accumulate = false;
      run(q, none);
      for (double v : values(p.fn_grad)) REQUIRE(v == 0);
      CHECK(m.guards_intact());
    }
}
