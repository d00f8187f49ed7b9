#include <limits>

#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::topk_sum_and_topk_group_idx;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

topk_sum_and_topk_group_idx make(memory& m, std::int64_t groups, std::int64_t size, std::int64_t kept,
                                 const std::vector<float>& row = {}) {
  topk_sum_and_topk_group_idx p;
  p.scores = m.make(dtype::f32, {2, groups, size});
  fill_normal(p.scores, 9);
  for (std::size_t i = 0; i < row.size(); ++i) static_cast<float*>(p.scores.data)[i] = row[i];
  p.topk_group_idx = m.make(dtype::i64, {2, kept});
  p.num_topk_groups = kept;
  return p;
}

std::vector<std::int64_t> first_row(topk_sum_and_topk_group_idx p, std::int64_t num_topk_sum) {
  p.num_topk_sum = num_topk_sum;
  queue q{cpu_selector};
  run(q, p);
  const auto* v = static_cast<const std::int64_t*>(p.topk_group_idx.data);
  return {v, v + p.num_topk_groups};
}
using list = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("moe.topk_sum_and_topk_group_idx refuses bad problems") {
  expect_refusals<topk_sum_and_topk_group_idx>(
      [](memory& m) { return make(m, 4, 3, 2); },
      {
          {"absent", [](auto& p) { p.scores = {}; }, "scores = absent: is required"},
          {"rank", [](auto& p) { p.scores.rank = 2; }, "scores.rank = 2"},
          {"dtype", [](auto& p) { p.scores.dtype = dtype::i32; }, "scores.dtype = i32: must be f32"},
          {"contiguous", [](auto& p) { p.scores.strides[0] = 13; }, "must be contiguous", 3},
          {"num_topk_sum", [](auto& p) { p.num_topk_sum = 3; }, "num_topk_sum = 3: must be one of 1, 2", 1},
          {"num_topk_sum above the group",
           [](auto& p) {
             p.scores.extents[2] = 1;
             p.scores.strides = {4, 1, 1};
           },
           "num_topk_sum = 2: must be at most group_size = 1", 1},
          {"groups kept",
           [](auto& p) {
             p.scores.extents[1] = 1;
             p.scores.strides[0] = 3;
           },
           "num_topk_groups = 2: must be at most num_groups = 1", 2},
      });
}

TEST_CASE("moe.topk_sum_and_topk_group_idx ranks by the best score or the sum of two") {
  memory m;
  const auto p = make(m, 3, 3, 3, {5, -9, -9, 1, 1, 0, 2, 2, 2});
  CHECK(first_row(p, 1) == list{0, 2, 1});
  CHECK(first_row(p, 2) == list{2, 1, 0});
  // Equal sums: the smaller index first. The result is not sorted by index.
  CHECK(first_row(make(m, 4, 2, 3, {1, 1, 2, 0, 3, 0, 0, 2}), 2) == list{2, 0, 1});
  // The sum is rounded to fp32, so these tie.
  CHECK(first_row(make(m, 2, 2, 2, {1, 0, 1, 0x1p-25f}), 2) == list{0, 1});
}

TEST_CASE("moe.topk_sum_and_topk_group_idx: infinities, NaN, many groups, no tokens") {
  memory m;
  CHECK(first_row(make(m, 3, 2, 3, {-inf, 1, -inf, -inf, 0, -5}), 2) == list{2, 0, 1});
  const auto p = make(m, 3, 2, 3, {not_a_number, 1, not_a_number, not_a_number, -3, -inf});
  CHECK(first_row(p, 1) == list{0, 2, 1});
  CHECK(first_row(p, 2) == list{2, 0, 1});
  expect_trap(p, "scores must not be NaN", 0);
  CHECK_NOTHROW(first_row(make(m, 40, 3, 35), 2));
  auto none = make(m, 4, 3, 2);
  none.scores.extents[0] = none.topk_group_idx.extents[0] = 0;
  queue q{cpu_selector};
  CHECK_NOTHROW(run(q, none));
  CHECK(m.guards_intact());
}
