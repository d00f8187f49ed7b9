#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::expand_backward;

namespace {

expand_backward good(memory& m, std::int64_t mult = 3) {
  expand_backward p;
  p.out_grad = fill(m.make(dtype::bf16, {5, mult, 13}), 1);
  p.x_grad = m.make(dtype::bf16, {5, 13});
  return p;
}

}  // namespace

TEST_CASE("mhc.expand_backward refuses bad problems") {
  expect_refusals<expand_backward>(
      [](memory& m) { return good(m); },
      {
          {"absent", [](auto& p) { p.out_grad = {}; }, "out_grad = absent: is required"},
          {"dtype", [](auto& p) { p.out_grad.dtype = dtype::f16; }, "out_grad.dtype = f16: must be bf16"},
          {"not contiguous", [](auto& p) { p.out_grad.extents[1] = 2; }, "must be contiguous", 1},
          {"hidden_size", [](auto& p) { p.x_grad.extents[1] = 12; },
           "x_grad.extents[1] = 12: must be hidden_size = 13"},
          {"tokens", [](auto& p) { p.x_grad.extents[0] = 4; },
           "x_grad.extents[0] = 4: must be num_tokens = 5"},
          {"no streams", [](auto& p) { p.out_grad.extents[1] = 0; }, "mhc_mult = 0: must be at least 1"},
      });
}

TEST_CASE("mhc.expand_backward is the adjoint of mhc.expand, streams added in order") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 8, 11}) {
    memory m;
    expand_backward p = good(m, mult);
    run(q, p);
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t h = 0; h < 13; ++h) {
        float sum = 0;
        for (std::int64_t i = 0; i < mult; ++i)
          sum += static_cast<float>(value(p.out_grad, (t * mult + i) * 13 + h));
        REQUIRE(at<numeric::bf16>(p.x_grad, t, h) == numeric::to_bf16(sum));
      }
    mhc::expand f;
    f.mhc_mult = mult;
    f.x = fill(m.make(dtype::bf16, {5, 13}), 2);
    f.out = m.make(dtype::bf16, {5, mult, 13});
    run(q, f);
    CHECK(inner(values(f.out), values(p.out_grad)) ==
          Approx(inner(values(f.x), values(p.x_grad))).margin(0.1));
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    CHECK(m.guards_intact());
  }
}
