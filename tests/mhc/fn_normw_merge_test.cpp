#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::fn_normw_merge;

namespace {

fn_normw_merge good(memory& m) {
  fn_normw_merge p;
  p.fn = fill(m.make(dtype::f32, {5, 13}), 1);
  p.norm_weight = fill(m.make(dtype::f32, {13}), 2);
  p.out = m.make(dtype::f32, {5, 13});
  return p;
}

}  // namespace

TEST_CASE("mhc.fn_normw_merge refuses bad problems") {
  expect_refusals<fn_normw_merge>(
      good,
      {
          {"norm_weight absent", [](auto& p) { p.norm_weight = {}; }, "norm_weight = absent: is required"},
          {"dtype", [](auto& p) { p.fn.dtype = dtype::bf16; }, "fn.dtype = bf16: must be f32"},
          {"length of norm_weight", [](auto& p) { p.norm_weight.extents[0] = 12; },
           "norm_weight.extents[0] = 12: must be num_cols = 13"},
          {"shape of out", [](auto& p) { p.out.extents[0] = 4; }, "out.extents[0] = 4: must be num_rows = 5"},
          {"rank", [](auto& p) { p.fn.rank = 1; }, "fn.rank = 1"},
      });
}

TEST_CASE("mhc.fn_normw_merge is one product") {
  memory m;
  queue q{cpu_selector};
  fn_normw_merge p = good(m);
  run(q, p);
  for (std::int64_t j = 0; j < 5; ++j)
    for (std::int64_t k = 0; k < 13; ++k)
      CHECK(at<float>(p.out, j, k) == at<float>(p.fn, j, k) * at<float>(p.norm_weight, k));
  expect_layout_freedom(p);
  CHECK_NOTHROW(run(q, resized(p, "num_rows", 0)));
  CHECK(m.guards_intact());
}
