#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using mhc::pre_apply_mix;

namespace {

pre_apply_mix good(memory& m, std::int64_t mult, std::int64_t hidden) {
  pre_apply_mix p;
  p.x = fill(m.make(dtype::bf16, {5, mult, hidden}), 1);
  p.mix = fill(m.make(dtype::f32, {5, mult}), 2);
  p.out = m.make(dtype::bf16, {5, hidden});
  return p;
}

}  // namespace

TEST_CASE("mhc.pre_apply_mix refuses bad problems") {
  expect_refusals<pre_apply_mix>(
      [](memory& m) { return good(m, 3, 24); },
      {
          {"mix absent", [](auto& p) { p.mix = {}; }, "mix = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::f16; }, "x.dtype = f16: must be bf16"},
          {"dtype of mix", [](auto& p) { p.mix.dtype = dtype::bf16; }, "mix.dtype = bf16: must be f32"},
          {"streams of mix", [](auto& p) { p.mix.extents[1] = 2; },
           "mix.extents[1] = 2: must be mhc_mult = 3"},
          {"hidden_size of out", [](auto& p) { p.out.extents[1] = 16; },
           "out.extents[1] = 16: must be hidden_size = 24"},
          {"hidden_size", [](auto& p) { p.x.extents[2] = p.out.extents[1] = 12; },
           "hidden_size = 12: must be a positive multiple of 8", 1},
          {"hidden_size 0", [](auto& p) { p.x.extents[2] = p.out.extents[1] = 0; }, "hidden_size = 0"},
          {"no streams", [](auto& p) { p.x.extents[1] = p.mix.extents[1] = 0; },
           "mhc_mult = 0: must be at least 1"},
          {"rank of x", [](auto& p) { p.x.rank = 2; }, "x.rank = 2"},
          {"stride of x", [](auto& p) { p.x.strides[2] = 2; }, "the last stride must be 1"},
      });
}

TEST_CASE("mhc.pre_apply_mix adds the streams in order with one rounding") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    memory m;
    pre_apply_mix p = good(m, mult, mult == 4 ? 8 : 24);
    run(q, p);
    const std::int64_t hidden = p.x.extent(2);
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t h = 0; h < hidden; ++h) {
        float sum = 0;
        for (std::int64_t i = 0; i < mult; ++i)
          sum = std::fma(at<float>(p.mix, t, i), static_cast<float>(value(p.x, (t * mult + i) * hidden + h)),
                         sum);
        REQUIRE(at<numeric::bf16>(p.out, t, h) == numeric::to_bf16(sum));
      }
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("mhc.pre_apply_mix with one hot mix copies a stream") {
  memory m;
  queue q{cpu_selector};
  pre_apply_mix p = good(m, 4, 16);
  fill(p.mix, 1, 0, 0);
  for (std::int64_t t = 0; t < 5; ++t) at<float>(p.mix, t, t % 4) = 1;
  run(q, p);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t h = 0; h < 16; ++h)
      CHECK(value(p.out, t * 16 + h) == value(p.x, (t * 4 + t % 4) * 16 + h));
}
