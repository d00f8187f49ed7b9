#include <cmath>

#include <portile/portile.hpp>

#include "mhc/chain.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::pre;

namespace {

pre good(memory& m, std::int64_t mult = 3) {
  pre p;
  const std::int64_t hidden = 16, mixes = mult * (mult + 2);
  p.residual = fill(m.make(dtype::bf16, {5, mult, hidden}), 1);
  p.fn = fill(m.make(dtype::f32, {mixes, mult * hidden}), 2, 0.3f);
  p.norm_weight = fill(m.make(dtype::f32, {mult * hidden}), 5, 0.3f, 1);
  p.scale = fill(m.make(dtype::f32, {3}), 3);
  p.base = fill(m.make(dtype::f32, {mixes}), 4);
  p.post_mix = m.make(dtype::f32, {5, mult});
  p.comb_mix = m.make(dtype::f32, {5, mult, mult});
  p.layer_input = m.make(dtype::bf16, {5, hidden});
  p.out_mul = m.make(dtype::f32, {5, mixes});
  p.sqrsum = m.make(dtype::f32, {5});
  p.pre_mix = m.make(dtype::f32, {5, mult});
  return p;
}

}  // namespace

TEST_CASE("mhc.pre refuses bad problems") {
  expect_refusals<pre>(
      [](memory& m) { return good(m); },
      {
          {"fn absent", [](auto& p) { p.fn = {}; }, "fn = absent: is required"},
          {"dtype of residual", [](auto& p) { p.residual.dtype = dtype::f16; },
           "residual.dtype = f16: must be bf16"},
          {"length of norm_weight", [](auto& p) { p.norm_weight.extents[0] = 47; },
           "norm_weight.extents[0] = 47"},
          {"rows of fn", [](auto& p) { p.fn.extents[0] = 14; }, "fn.extents[0] = 14"},
          {"length of scale", [](auto& p) { p.scale.extents[0] = 1; }, "scale.extents[0] = 1: must be 3"},
          {"shape of pre_mix", [](auto& p) { p.pre_mix.extents[1] = 2; },
           "pre_mix.extents[1] = 2: must be mhc_mult = 3"},
          {"hidden_size",
           [](auto& p) {
             p.residual.extents[2] = p.layer_input.extents[1] = 12;
             p.fn.extents[1] = p.norm_weight.extents[0] = 36;
           },
           "hidden_size = 12: must be a positive multiple of 8", 1},
          {"repeat", [](auto& p) { p.sinkhorn_repeat = 0; }, "sinkhorn_repeat = 0: must be at least 1", 4},
          {"too many repeats", [](auto& p) { p.sinkhorn_repeat = 65537; },
           "sinkhorn_repeat = 65537: must be at most 65536", 4},
          {"n_splits", [](auto& p) { p.n_splits = 0; }, "n_splits = 0: must be at least 1", 3},
          {"mhc_mult 9",
           [](auto& p) {
             for (tensor* t : {&p.residual, &p.post_mix, &p.comb_mix, &p.pre_mix}) t->extents[1] = 9;
             for (tensor* t :
                  {&p.residual, &p.post_mix, &p.comb_mix, &p.pre_mix, &p.out_mul, &p.layer_input, &p.sqrsum})
               t->extents[0] = 0;
             p.comb_mix.extents[2] = p.comb_mix.strides[1] = 9;
             p.fn.extents = {99, 144};
             p.norm_weight.extents[0] = 144;
             p.base.extents[0] = p.out_mul.extents[1] = 99;
           },
           "mhc_mult = 9: must be at most 8", 2},
          {"mhc_mult 0",
           [](auto& p) {
             for (tensor* t : {&p.residual, &p.post_mix, &p.comb_mix, &p.pre_mix, &p.out_mul})
               t->extents[1] = 0;
             p.comb_mix.extents[2] = p.norm_weight.extents[0] = p.base.extents[0] = 0;
             p.fn.extents = {0, 0};
           },
           "mhc_mult = 0: must be at least 1", 2},
      });
}

TEST_CASE("mhc.pre has the bits of the unfused operations, with and without norm_weight, saving or not") {
  queue q{cpu_selector};
  for (std::int64_t mult = 1; mult <= 8; ++mult)
    for (const bool weight : {true, false}) {
      memory m;
      pre p = good(m, mult);
      if (!weight) p.norm_weight = {};
      p.post_mult_value = 2;
      p.pre_eps = 0.25;
      p.n_splits = 5;
      run(q, p);
      const unfused u = run_unfused(m, p, p.norm_weight, 5);
      CHECK(first_difference(p.post_mix, u.split.post_mix) == -1);
      CHECK(first_difference(p.comb_mix, u.sinkhorn.out) == -1);
      CHECK(first_difference(p.layer_input, u.apply.out) == -1);
      CHECK(first_difference(p.out_mul, u.norm.out_mul) == -1);
      CHECK(first_difference(p.sqrsum, u.norm.sqrsum) == -1);
      CHECK(first_difference(p.pre_mix, u.split.pre_mix) == -1);
      copied<pre> unsaved(p);
      unsaved.p.out_mul = unsaved.p.sqrsum = unsaved.p.pre_mix = {};
      run(q, unsaved.p);
      CHECK(first_difference(unsaved.p.layer_input, p.layer_input) == -1);
      CHECK(first_difference(unsaved.p.comb_mix, p.comb_mix) == -1);
      expect_layout_freedom(p);
      expect_tokens_alone(p);
      CHECK(m.guards_intact());
    }
}

TEST_CASE("mhc.pre of equal streams ignores their number: outputs are not off by a root") {
  // Ones everywhere: RMS 1, so out_mul / K is the mean of fn whatever the size of the row.
  queue q{cpu_selector};
  memory m;
  pre p = good(m, 4);
  p.norm_weight = {};
  fill(p.residual, 1, 0, 1);
  fill(p.fn, 1, 0, 0.25f);
  fill(p.scale, 1, 0, 1);
  fill(p.base, 1, 0, 0);
  run(q, p);
  CHECK(at<float>(p.sqrsum, 0) == 64);
  for (double v : values(p.out_mul)) CHECK(v == 16);
  for (double v : values(p.post_mix)) CHECK(v == Approx(1 / (1 + std::exp(-16.0))).epsilon(1e-6));
  for (double v : values(p.comb_mix)) CHECK(v == Approx(0.25).epsilon(1e-5));
  for (double v : values(p.layer_input)) CHECK(v == Approx(4).epsilon(0.004));
}
