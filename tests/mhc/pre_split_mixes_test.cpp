#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using mhc::pre_split_mixes;

namespace {

pre_split_mixes good(memory& m, std::int64_t mult) {
  pre_split_mixes p;
  const std::int64_t mixes = mult * (mult + 2);
  p.x = fill(m.make(dtype::f32, {5, mixes}), 1);
  p.scale = fill(m.make(dtype::f32, {3}), 2);
  p.base = fill(m.make(dtype::f32, {mixes}), 3);
  p.pre_mix = m.make(dtype::f32, {5, mult});
  p.post_mix = m.make(dtype::f32, {5, mult});
  p.comb_mix = m.make(dtype::f32, {5, mult, mult});
  return p;
}

}  // namespace

TEST_CASE("mhc.pre_split_mixes refuses bad problems") {
  expect_refusals<pre_split_mixes>(
      [](memory& m) { return good(m, 3); },
      {
          {"scale absent", [](auto& p) { p.scale = {}; }, "scale = absent: is required"},
          {"dtype", [](auto& p) { p.x.dtype = dtype::bf16; }, "x.dtype = bf16: must be f32"},
          {"columns of x", [](auto& p) { p.x.extents[1] = 14; },
           "x.extents[1] = 14: must be mhc_mult * (mhc_mult + 2) = 15", 1},
          {"length of scale", [](auto& p) { p.scale.extents[0] = 2; }, "scale.extents[0] = 2: must be 3"},
          {"length of base", [](auto& p) { p.base.extents[0] = 14; }, "base.extents[0] = 14"},
          {"post_mix", [](auto& p) { p.post_mix.extents[1] = 2; },
           "post_mix.extents[1] = 2: must be mhc_mult = 3"},
          {"comb_mix", [](auto& p) { p.comb_mix.extents[2] = 2; },
           "comb_mix.extents[2] = 2: must be mhc_mult = 3"},
          {"rank of comb_mix", [](auto& p) { p.comb_mix.rank = 2; }, "comb_mix.rank = 2"},
          {"mhc_mult 0",
           [](auto& p) {
             for (tensor* t : {&p.x, &p.pre_mix, &p.post_mix, &p.comb_mix}) t->extents[1] = 0;
             p.base.extents[0] = p.comb_mix.extents[2] = 0;
           },
           "mhc_mult = 0"},
      });
}

TEST_CASE("mhc.pre_split_mixes follows its formula for every mhc_mult") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    memory m;
    pre_split_mixes p = good(m, mult);
    p.post_mult_value = 2;
    p.pre_eps = 0.125;
    run(q, p);
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t j = 0; j < mult * (mult + 2); ++j) {
        const std::int64_t kind = std::min<std::int64_t>(j / mult, 2), i = j % mult;
        const double z =
            static_cast<double>(at<float>(p.x, t, j)) * at<float>(p.scale, kind) + at<float>(p.base, j);
        const double s = 1 / (1 + std::exp(-z));
        if (kind == 0) CHECK(at<float>(p.pre_mix, t, i) == Approx(s + 0.125).epsilon(1e-6));
        if (kind == 1) CHECK(at<float>(p.post_mix, t, i) == Approx(2 * s).epsilon(1e-6));
        if (kind == 2)
          CHECK(value(p.comb_mix, t * mult * mult + j - 2 * mult) == Approx(z).epsilon(1e-6).margin(1e-7));
      }
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    pre_split_mixes bare = p;
    bare.pre_mix = bare.post_mix = bare.comb_mix = {};
    CHECK(infer(bare).at(2).extents == std::vector<std::int64_t>{5, mult, mult});
    CHECK(m.guards_intact());
  }
}
