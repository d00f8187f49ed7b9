#include <limits>

#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::normalize_weight;

namespace {

normalize_weight make(memory& m, std::int64_t tokens, std::int64_t k) {
  normalize_weight p;
  p.topk_weights = m.make(dtype::f32, {tokens, k});
  p.denominator = m.make(dtype::f32, {tokens});
  p.normalized = m.make(dtype::f32, {tokens, k});
  fill_normal(p.topk_weights, 3);
  return p;
}

}  // namespace

TEST_CASE("moe.normalize_weight refuses bad problems") {
  expect_refusals<normalize_weight>(
      [](memory& m) { return make(m, 4, 6); },
      {
          {"weights absent", [](auto& p) { p.topk_weights = {}; }, "topk_weights = absent: is required"},
          {"dtype", [](auto& p) { p.topk_weights.dtype = dtype::bf16; },
           "topk_weights.dtype = bf16: must be f32"},
          {"rank", [](auto& p) { p.topk_weights.rank = 1; }, "topk_weights.rank = 1"},
          {"contiguous", [](auto& p) { p.topk_weights.strides[0] = 8; }, "must be contiguous", 1},
          {"denominator", [](auto& p) { p.denominator.extents[0] = 3; },
           "denominator.extents[0] = 3: must be num_tokens = 4"},
          {"sum_order", [](auto& p) { p.sum_order = "tree"; }, "sum_order = 'tree'"},
          {"lanes",
           [](auto& p) {
             p.topk_weights.extents[1] = p.normalized.extents[1] = 33;
             p.topk_weights.strides[0] = p.normalized.strides[0] = 33;
           },
           "num_topk = 33: must be at most 32 with sum_order 'butterfly'", 2},
      });
}

TEST_CASE("moe.normalize_weight sums in the order asked for") {
  memory m;
  normalize_weight p = make(m, 1, 4);
  // 1 + 2^-24 ties down to 1, so the order shows: slots 0 + 2 and 1 + 3 meet first in the butterfly.
  const float tiny = 0x1p-24f, row[] = {1, tiny, 0, tiny};
  for (int j = 0; j < 4; ++j) at<float>(p.topk_weights, 0, j) = row[j];
  queue q{cpu_selector};
  run(q, p);
  CHECK(at<float>(p.denominator, 0) == 1 + 0x1p-23f);
  p.sum_order = "sequential";
  run(q, p);
  CHECK(at<float>(p.denominator, 0) == 1);
  CHECK(at<float>(p.normalized, 0, 1) == tiny);
}

TEST_CASE("moe.normalize_weight: zeros, one slot, NaN stays in its row, no tokens, strided result") {
  memory m;
  queue q{cpu_selector};
  for (const char* order : {"butterfly", "sequential"}) {
    normalize_weight p = make(m, 3, 3);
    p.normalized = m.make(dtype::f32, {3, 3}, {5, 1});
    p.sum_order = order;
    for (int j = 0; j < 3; ++j) at<float>(p.topk_weights, 0, j) = 0, at<float>(p.topk_weights, 2, j) = 2;
    at<float>(p.topk_weights, 1, 1) = std::numeric_limits<float>::quiet_NaN();
    run(q, p);
    CHECK(at<float>(p.denominator, 0) == 1e-20f);
    for (int j = 0; j < 3; ++j) {
      CHECK(at<float>(p.normalized, 0, j) == 0);
      CHECK(at<float>(p.normalized, 1, j) != at<float>(p.normalized, 1, j));
      CHECK(at<float>(p.normalized, 2, j) == 2.0f / 6.0f);
    }
    CHECK(at<std::uint32_t>(p.normalized, 0, 3) == 0xA5A5A5A5u);
    normalize_weight none = make(m, 0, 3);
    none.sum_order = order;
    CHECK_NOTHROW(run(q, none));
  }
  normalize_weight wide = make(m, 2, 50);
  wide.sum_order = "sequential";
  CHECK_NOTHROW(run(q, wide));
  CHECK(m.guards_intact());
}
