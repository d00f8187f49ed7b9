#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::head_compute_mix_backward;

namespace {

head_compute_mix_backward good(memory& m, std::int64_t mult = 3) {
  head_compute_mix_backward p;
  p.x = fill(m.make(dtype::f32, {5, mult}), 1);
  p.scale = fill(m.make(dtype::f32, {1}), 2);
  p.base = fill(m.make(dtype::f32, {mult}), 3);
  p.out_grad = fill(m.make(dtype::f32, {5, mult}), 4);
  p.x_grad = m.make(dtype::f32, {5, mult});
  p.scale_grad = fill(m.make(dtype::f32, {1}), 1, 0, std::nanf(""));
  p.base_grad = fill(m.make(dtype::f32, {mult}), 1, 0, std::nanf(""));
  return p;
}

}  // namespace

TEST_CASE("mhc.head_compute_mix_backward refuses bad problems") {
  expect_refusals<head_compute_mix_backward>(
      [](memory& m) { return good(m); },
      {
          {"out_grad absent", [](auto& p) { p.out_grad = {}; }, "out_grad = absent: is required"},
          {"scale_grad absent", [](auto& p) { p.scale_grad = {}; }, "scale_grad = absent: is required"},
          {"dtype", [](auto& p) { p.base_grad.dtype = dtype::bf16; }, "base_grad.dtype = bf16: must be f32"},
          {"shape of x_grad", [](auto& p) { p.x_grad.extents[1] = 2; },
           "x_grad.extents[1] = 2: must be mhc_mult = 3"},
          {"length of base_grad", [](auto& p) { p.base_grad.extents[0] = 2; },
           "base_grad.extents[0] = 2: must be mhc_mult = 3"},
          {"length of scale_grad", [](auto& p) { p.scale_grad.extents[0] = 2; },
           "scale_grad.extents[0] = 2: must be 1"},
      });
}

TEST_CASE("mhc.head_compute_mix_backward is the derivative, and adds when asked") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 4, 8}) {
    memory m;
    head_compute_mix_backward p = good(m, mult);
    run(q, p);
    const numbers x = values(p.x), scale = values(p.scale), base = values(p.base), g = values(p.out_grad);
    const auto loss = [&](const numbers& xs, const numbers& s, const numbers& b) {
      double sum = 0;
      for (std::size_t k = 0; k < xs.size(); ++k)
        sum += g[k] * model::sigmoid(xs[k] * s[0] + b[k % b.size()]);
      return sum;
    };
    expect_gradient(
        "x_grad", x, values(p.x_grad), [&](const numbers& v) { return loss(v, scale, base); }, 1e-5, 1e-6);
    expect_gradient(
        "scale_grad", scale, values(p.scale_grad), [&](const numbers& v) { return loss(x, v, base); }, 1e-5,
        1e-6);
    expect_gradient(
        "base_grad", base, values(p.base_grad), [&](const numbers& v) { return loss(x, scale, v); }, 1e-5,
        1e-6);
    expect_layout_freedom(p);
    copied<head_compute_mix_backward> twice(p);
    twice.p.accumulate = true;
    run(q, twice.p);
    CHECK(value(twice.p.scale_grad, 0) == Approx(2 * value(p.scale_grad, 0)).epsilon(1e-6));
    for (std::int64_t j = 0; j < mult; ++j)
      CHECK(value(twice.p.base_grad, j) == Approx(2 * value(p.base_grad, j)).epsilon(1e-6));

    head_compute_mix_backward none = resized(p, "num_tokens", 0);
    none.accumulate = true;
    fill(p.base_grad, 1, 0, 3);
    run(q, none);
    for (double v : values(p.base_grad)) CHECK(v == 3);
    none.accumulate = false;
    run(q, none);
    for (double v : values(p.base_grad)) CHECK(v == 0);
    CHECK(value(p.scale_grad, 0) == 0);
    CHECK(m.guards_intact());
  }
}
