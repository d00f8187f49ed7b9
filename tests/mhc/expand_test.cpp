#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using mhc::expand;

namespace {

expand good(memory& m) {
  expand p;
  p.mhc_mult = 3;
  p.x = fill(m.make(dtype::bf16, {5, 13}), 1);
  p.out = m.make(dtype::bf16, {5, 3, 13});
  return p;
}

}  // namespace

TEST_CASE("mhc.expand refuses bad problems") {
  expect_refusals<expand>(
      good, {
                {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
                {"dtype", [](auto& p) { p.x.dtype = dtype::f16; }, "x.dtype = f16: must be bf16"},
                {"x not contiguous",
                 [](auto& p) {
                   p.x.strides[0] = 14;
                   p.x.extents[0] = p.out.extents[0] = 4;
                 },
                 "must be contiguous", 1},
                {"mhc_mult 0",
                 [](auto& p) {
                   p.mhc_mult = 0;
                   p.out.extents[1] = 0;
                 },
                 "mhc_mult = 0: must be at least 1"},
                {"mhc_mult against out", [](auto& p) { p.mhc_mult = 4; },
                 "out.extents[1] = 3: must be mhc_mult = 4"},
                {"hidden_size of out", [](auto& p) { p.out.extents[2] = 12; },
                 "out.extents[2] = 12: must be hidden_size = 13"},
                {"rank of out", [](auto& p) { p.out.rank = 2; }, "out.rank = 2"},
            });
}

TEST_CASE("mhc.expand copies bits into any number of streams") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 8, 11}) {
    memory m;
    expand p;
    p.mhc_mult = mult;
    p.x = fill(m.make(dtype::bf16, {5, 13}), 1);
    static_cast<numeric::bf16*>(p.x.data)[3] = {0xFFA1};
    p.out = m.make(dtype::bf16, {5, mult, 13});
    run(q, p);
    for (std::int64_t i = 0; i < p.out.numel(); ++i)
      REQUIRE(static_cast<numeric::bf16*>(p.out.data)[i] ==
              static_cast<numeric::bf16*>(p.x.data)[i / (13 * mult) * 13 + i % 13]);
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    CHECK(m.guards_intact());
  }
}
