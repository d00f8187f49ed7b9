#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::pre_apply_mix_backward;

namespace {

pre_apply_mix_backward good(memory& m, std::int64_t mult = 3, std::int64_t hidden = 16) {
  pre_apply_mix_backward p;
  p.x = fill(m.make(dtype::bf16, {5, mult, hidden}), 1);
  p.mix = fill(m.make(dtype::f32, {5, mult}), 2);
  p.out_grad = fill(m.make(dtype::bf16, {5, hidden}), 3);
  p.x_grad = fill(m.make(dtype::bf16, {5, mult, hidden}), 1, 0, std::nanf(""));
  p.mix_grad = m.make(dtype::f32, {5, mult});
  return p;
}

}  // namespace

TEST_CASE("mhc.pre_apply_mix_backward refuses bad problems") {
  expect_refusals<pre_apply_mix_backward>(
      [](memory& m) { return good(m); },
      {
          {"out_grad absent", [](auto& p) { p.out_grad = {}; }, "out_grad = absent: is required"},
          {"dtype", [](auto& p) { p.x_grad.dtype = dtype::f16; }, "x_grad.dtype = f16: must be bf16"},
          {"streams", [](auto& p) { p.mix.extents[1] = 2; }, "mix.extents[1] = 2: must be mhc_mult = 3"},
          {"hidden_size", [](auto& p) { p.x.extents[2] = p.x_grad.extents[2] = p.out_grad.extents[1] = 12; },
           "hidden_size = 12: must be a positive multiple of 8", 1},
          {"shape of out_grad", [](auto& p) { p.out_grad.extents[1] = 8; },
           "out_grad.extents[1] = 8: must be hidden_size = 16"},
          {"shape of mix_grad", [](auto& p) { p.mix_grad.extents[1] = 2; },
           "mix_grad.extents[1] = 2: must be mhc_mult = 3"},
          {"overlap", [](auto& p) { p.x_grad.strides[1] = 0; }, "must not overlap itself"},
      });
}

TEST_CASE("mhc.pre_apply_mix_backward is the derivative; x_grad is overwritten, added to, or left out") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 4, 8, 9}) {
    memory m;
    pre_apply_mix_backward p = good(m, mult);
    run(q, p);
    const auto n = static_cast<std::size_t>(mult);
    const numbers x = values(p.x), mix = values(p.mix), g = values(p.out_grad);
    if (mult <= 4) {
      expect_gradient(
          "x_grad", x, values(p.x_grad), [&](const numbers& v) { return inner(g, model::apply(v, mix, n)); },
          0.004, 1e-6);
      expect_gradient(
          "mix_grad", mix, values(p.mix_grad),
          [&](const numbers& v) { return inner(g, model::apply(x, v, n)); }, 1e-5, 1e-6);
    }
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    copied<pre_apply_mix_backward> added(p), without(p);
    added.p.accumulate = true;
    fill(added.p.x_grad, 5);
    const numbers before = values(added.p.x_grad);
    run(q, added.p);
    for (std::int64_t k = 0; k < p.x.numel(); ++k) {
      const std::int64_t row = k / 16;
      const float want = std::fma(static_cast<float>(value(p.mix, row)),
                                  static_cast<float>(value(p.out_grad, row / mult * 16 + k % 16)),
                                  static_cast<float>(before[static_cast<std::size_t>(k)]));
      REQUIRE(value(added.p.x_grad, k) == numeric::to_float(numeric::to_bf16(want)));
    }
    without.p.x_grad = {};
    run(q, without.p);
    CHECK(first_difference(without.p.mix_grad, p.mix_grad) == -1);
    CHECK(m.guards_intact());
  }
}
