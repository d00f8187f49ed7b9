#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using mhc::post;

namespace {

post good(memory& m, std::int64_t mult, std::int64_t hidden) {
  post p;
  p.x = fill(m.make(dtype::bf16, {5, hidden}), 1);
  p.residual = fill(m.make(dtype::bf16, {5, mult, hidden}), 2);
  p.post_mix = fill(m.make(dtype::f32, {5, mult}), 3);
  p.comb_mix = fill(m.make(dtype::f32, {5, mult, mult}), 4);
  p.out = m.make(dtype::bf16, {5, mult, hidden});
  return p;
}

}  // namespace

TEST_CASE("mhc.post refuses bad problems") {
  expect_refusals<post>(
      [](memory& m) { return good(m, 3, 24); },
      {
          {"residual absent", [](auto& p) { p.residual = {}; }, "residual = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::f16; }, "x.dtype = f16: must be bf16"},
          {"dtype of comb_mix", [](auto& p) { p.comb_mix.dtype = dtype::i32; },
           "comb_mix.dtype = i32: must be f32"},
          {"tokens", [](auto& p) { p.residual.extents[0] = 4; },
           "residual.extents[0] = 4: must be num_tokens = 5"},
          {"streams of post_mix", [](auto& p) { p.post_mix.extents[1] = 2; },
           "post_mix.extents[1] = 2: must be mhc_mult = 3"},
          {"comb_mix not square", [](auto& p) { p.comb_mix.extents[1] = 2; },
           "comb_mix.extents[1] = 2: must be mhc_mult = 3"},
          {"hidden_size", [](auto& p) { p.x.extents[1] = p.residual.extents[2] = p.out.extents[2] = 20; },
           "hidden_size = 20: must be a positive multiple of 8", 1},
          {"in place", [](auto& p) { p.out = p.residual; }, "must not be the buffer of residual"},
          {"rank of x", [](auto& p) { p.x.rank = 1; }, "x.rank = 1"},
          {"no streams",
           [](auto& p) {
             p.residual.extents[1] = p.post_mix.extents[1] = p.comb_mix.extents[1] = p.comb_mix.extents[2] =
                 p.out.extents[1] = 0;
           },
           "mhc_mult = 0"},
      });
}

TEST_CASE("mhc.post mixes source streams in order with one rounding") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    memory m;
    post p = good(m, mult, mult == 4 ? 8 : 24);
    run(q, p);
    const std::int64_t hidden = p.x.extent(1);
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t o = 0; o < mult; ++o)
        for (std::int64_t h = 0; h < hidden; ++h) {
          float sum = at<float>(p.post_mix, t, o) * static_cast<float>(value(p.x, t * hidden + h));
          for (std::int64_t i = 0; i < mult; ++i)
            sum = std::fma(static_cast<float>(value(p.comb_mix, (t * mult + i) * mult + o)),
                           static_cast<float>(value(p.residual, (t * mult + i) * hidden + h)), sum);
          REQUIRE(value(p.out, (t * mult + o) * hidden + h) == numeric::to_float(numeric::to_bf16(sum)));
        }
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("mhc.post: the first index of comb_mix is the source") {
  memory m;
  queue q{cpu_selector};
  post p = good(m, 3, 8);
  fill(p.post_mix, 1, 0, 0);
  fill(p.comb_mix, 1, 0, 0);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t i = 0; i < 3; ++i)
      static_cast<float*>(p.comb_mix.data)[(t * 3 + i) * 3 + (i + 1) % 3] = 1;  // i goes to i + 1
  run(q, p);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t h = 0; h < 8; ++h)
        CHECK(value(p.out, (t * 3 + (i + 1) % 3) * 8 + h) == value(p.residual, (t * 3 + i) * 8 + h));
}
