#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::fn_normw_merge_backward;

namespace {

fn_normw_merge_backward good(memory& m) {
  fn_normw_merge_backward p;
  p.fn = fill(m.make(dtype::f32, {5, 13}), 1);
  p.norm_weight = fill(m.make(dtype::f32, {13}), 2);
  p.out_grad = fill(m.make(dtype::f32, {5, 13}), 3);
  p.fn_grad = fill(m.make(dtype::f32, {5, 13}), 1, 0, std::nanf(""));
  p.norm_weight_grad = fill(m.make(dtype::f32, {13}), 1, 0, std::nanf(""));
  return p;
}

}  // namespace

TEST_CASE("mhc.fn_normw_merge_backward refuses bad problems") {
  expect_refusals<fn_normw_merge_backward>(
      good,
      {
          {"out_grad absent", [](auto& p) { p.out_grad = {}; }, "out_grad = absent: is required"},
          {"dtype", [](auto& p) { p.fn_grad.dtype = dtype::bf16; }, "fn_grad.dtype = bf16: must be f32"},
          {"shape of fn_grad", [](auto& p) { p.fn_grad.extents[0] = 4; },
           "fn_grad.extents[0] = 4: must be num_rows = 5"},
          {"length of norm_weight_grad", [](auto& p) { p.norm_weight_grad.extents[0] = 12; },
           "norm_weight_grad.extents[0] = 12"},
          {"overlap", [](auto& p) { p.fn_grad.strides[0] = 0; }, "must not overlap itself"},
      });
}

TEST_CASE("mhc.fn_normw_merge_backward is the derivative, adds when asked, each gradient by itself") {
  memory m;
  queue q{cpu_selector};
  fn_normw_merge_backward p = good(m);
  run(q, p);
  const numbers fn = values(p.fn), w = values(p.norm_weight), g = values(p.out_grad);
  expect_gradient(
      "fn_grad", fn, values(p.fn_grad), [&](const numbers& v) { return inner(g, model::merged(v, w)); }, 1e-5,
      1e-6);
  expect_gradient(
      "norm_weight_grad", w, values(p.norm_weight_grad),
      [&](const numbers& v) { return inner(g, model::merged(fn, v)); }, 1e-5, 1e-6);
  expect_layout_freedom(p);
  copied<fn_normw_merge_backward> twice(p), one(p), other(p);
  twice.p.accumulate = true;
  run(q, twice.p);
  for (std::int64_t k = 0; k < 65; ++k)
    CHECK(value(twice.p.fn_grad, k) == Approx(2 * value(p.fn_grad, k)).epsilon(1e-6));
  for (std::int64_t k = 0; k < 13; ++k)
    CHECK(value(twice.p.norm_weight_grad, k) == 2 * value(p.norm_weight_grad, k));
  one.p.fn_grad = {};
  run(q, one.p);
  CHECK(first_difference(one.p.norm_weight_grad, p.norm_weight_grad) == -1);
  other.p.norm_weight_grad = {};
  run(q, other.p);
  CHECK(first_difference(other.p.fn_grad, p.fn_grad) == -1);
  CHECK(m.guards_intact());
}
