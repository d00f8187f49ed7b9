#include <limits>

#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::topk_gate;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

topk_gate make(memory& m, std::int64_t tokens, std::int64_t experts, std::int64_t k) {
  topk_gate p;
  p.scores = m.make(dtype::f32, {tokens, experts});
  p.topk_idx = m.make(dtype::i64, {tokens, k});
  p.num_topk = k;
  fill_normal(p.scores, 7);
  return p;
}

std::vector<std::int64_t> ids(memory& m, const std::vector<float>& row, std::int64_t k) {
  topk_gate p = make(m, 1, static_cast<std::int64_t>(row.size()), k);
  for (std::size_t e = 0; e < row.size(); ++e) at<float>(p.scores, 0, static_cast<std::int64_t>(e)) = row[e];
  queue q{cpu_selector};
  run(q, p);
  const auto* first = static_cast<const std::int64_t*>(p.topk_idx.data);
  return {first, first + k};
}
using list = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("moe.topk_gate refuses bad problems") {
  expect_refusals<topk_gate>(
      [](memory& m) { return make(m, 3, 8, 2); },
      {
          {"scores absent", [](auto& p) { p.scores = {}; }, "scores = absent: is required"},
          {"dtype of scores", [](auto& p) { p.scores.dtype = dtype::i32; },
           "scores.dtype = i32: must be f32"},
          {"rank of scores", [](auto& p) { p.scores.rank = 1; }, "scores.rank = 1"},
          {"scores not contiguous", [](auto& p) { p.scores.strides[0] = 16; }, "must be contiguous", 2},
          {"dtype of topk_idx", [](auto& p) { p.topk_idx.dtype = dtype::i32; },
           "topk_idx.dtype = i32: must be i64"},
          {"columns of topk_idx", [](auto& p) { p.num_topk = 3; },
           "topk_idx.extents[1] = 2: must be num_topk = 3"},
          {"no slot", [](auto& p) { p.num_topk = p.topk_idx.extents[1] = 0; },
           "num_topk = 0: must be at least 1", 1},
          {"k above E", [](auto& p) { p.scores.extents[1] = p.scores.strides[0] = 1; },
           "num_topk = 2: must be at most num_experts = 1", 1},
      });
}

TEST_CASE("moe.topk_gate orders totally") {
  memory m;
  CHECK(ids(m, {3, 2, 3, 2, 1, 1}, 4) == list{0, 2, 1, 3});
  CHECK(ids(m, {-0.0f, 0, 1e-45f, -1e-45f}, 4) == list{2, 0, 1, 3});
  CHECK(ids(m, {-inf, -inf, 1, -inf}, 4) == list{2, 0, 1, 3});
  CHECK(ids(m, {not_a_number, -inf, not_a_number, inf, -3}, 5) == list{3, 4, 1, 0, 2});
  CHECK(ids(m, {-not_a_number, not_a_number, not_a_number, not_a_number}, 3) == list{0, 1, 2});
  // Scores that differ in the lowest bit only.
  CHECK(ids(m, {1, 0x1.000002p0f, 0x1.000004p0f, 0x1.000002p0f}, 3) == list{2, 1, 3});
}

TEST_CASE("moe.topk_gate: the ids for k are a prefix of those for k + 1, up to all experts") {
  memory m;
  std::vector<float> row;
  for (int e = 0; e < 37; ++e) row.push_back(static_cast<float>(e * 13 % 7));
  const list all = ids(m, row, 37);
  for (std::size_t k = 1; k < 37; ++k)
    CHECK(ids(m, row, static_cast<std::int64_t>(k)) ==
          list(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(k)));
  for (std::size_t j = 1; j < 37; ++j) {
    const auto a = static_cast<std::size_t>(all[j - 1]), b = static_cast<std::size_t>(all[j]);
    CHECK((row[a] > row[b] || (row[a] == row[b] && a < b)));
  }
  CHECK(m.guards_intact());
}

TEST_CASE("moe.topk_gate traps on NaN, and on infinities where asked") {
  memory m;
  topk_gate p = make(m, 3, 8, 2);
  queue q{cpu_selector, queue_properties{.checked = true}};
  at<float>(p.scores, 2, 1) = inf;
  run(q, p);
  CHECK_NOTHROW(q.wait());
  p.require_finite = true;
  expect_trap(p, "scores must be finite", 17);
  at<float>(p.scores, 1, 4) = not_a_number;
  at<float>(p.scores, 1, 6) = not_a_number;
  expect_trap(p, "scores must not be NaN", 12);
  CHECK(at<std::int64_t>(p.topk_idx, 2, 0) == 1);
}

TEST_CASE("moe.topk_gate: no tokens, and more than 32 slots") {
  memory m;
  topk_gate none = make(m, 0, 8, 2);
  none.scores.data = none.topk_idx.data = nullptr;
  queue q{cpu_selector};
  CHECK_NOTHROW(run(q, none));
  CHECK_NOTHROW(run(q, make(m, 2, 100, 64)));
  CHECK(m.guards_intact());
  const auto outputs = infer(none);
  REQUIRE(outputs.size() == 1);
  CHECK(outputs[0].extents == std::vector<std::int64_t>{0, 2});
}
