#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::get_fused_mapping;

namespace {

get_fused_mapping make(memory& m, const tensor& topk_idx, std::int64_t experts, std::int64_t rows,
                       std::int64_t alignment) {
  get_fused_mapping p;
  p.topk_idx = topk_idx;
  p.pos_to_expert = m.make(dtype::i32, {rows});
  p.pos_to_token = m.make(dtype::i32, {rows});
  p.pos_to_token_topk = m.make(dtype::i32, {rows});
  p.token_topk_to_pos = m.make(dtype::i32, {topk_idx.extent(0), topk_idx.extent(1)});
  p.expert_start = m.make(dtype::i32, {experts});
  p.expert_end = m.make(dtype::i32, {experts});
  p.num_tokens_per_expert = m.make(dtype::i32, {experts});
  p.num_live_per_expert = m.make(dtype::i32, {experts});
  p.num_tokens_per_expert_list = m.make(dtype::i64, {experts});
  p.num_experts = experts;
  p.alignment = alignment;
  return p;
}

/// Random ids with every eighth or so -1; a token may name an expert twice.
tensor random_ids(memory& m, std::int64_t tokens, std::int64_t k, std::int64_t experts, unsigned seed) {
  tensor t = m.make(dtype::i64, {tokens, k});
  std::mt19937 rng(seed);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    static_cast<std::int64_t*>(t.data)[i] =
        rng() % 8 == 0 ? -1 : static_cast<std::int64_t>(rng() % static_cast<unsigned>(experts));
  return t;
}

std::vector<int> values(const tensor& t) {
  std::vector<int> v;
  for (std::int64_t i = 0; i < t.numel(); ++i) v.push_back(static_cast<const int*>(t.data)[i]);
  return v;
}
using ints = std::vector<int>;

get_fused_mapping good(memory& m) { return make(m, random_ids(m, 5, 2, 3, 1), 3, 24, 4); }

}  // namespace

TEST_CASE("moe.get_fused_mapping refuses bad problems") {
  expect_refusals<get_fused_mapping>(
      good, {
                {"topk_idx absent", [](auto& p) { p.topk_idx = {}; }, "topk_idx = absent: is required"},
                {"dtype of topk_idx", [](auto& p) { p.topk_idx.dtype = dtype::i32; },
                 "topk_idx.dtype = i32: must be i64"},
                {"topk_idx contiguous", [](auto& p) { p.topk_idx.strides[0] = 3; }, "must be contiguous", 1},
                {"alignment", [](auto& p) { p.alignment = 0; }, "alignment = 0: must be at least 1", 2},
                {"slots",
                 [](auto& p) {
                   p.topk_idx.extents = {std::int64_t{1} << 30, 2};
                   p.token_topk_to_pos.extents = p.topk_idx.extents;
                 },
                 "num_tokens * num_topk = 2147483648: must be below 2^31", 3},
                {"rows",
                 [](auto& p) {
                   p.pos_to_expert.extents[0] = p.pos_to_token.extents[0] = p.pos_to_token_topk.extents[0] =
                       std::int64_t{1} << 31;
                 },
                 "num_rows = 2147483648: must be below 2^31"},
                {"rows differ", [](auto& p) { p.pos_to_token.extents[0] = 23; },
                 "pos_to_token.extents[0] = 23: must be num_rows = 24"},
                {"expanded tokens",
                 [](auto& p) {
                   p.num_expanded_tokens = 16;
                   p.num_tokens_per_expert_list.extents[0] = 0;
                 },
                 "num_expanded_tokens = 16: must be 0 or the number of rows, 24"},
                {"list that is not synchronised", [](auto& p) { p.force_no_sync = true; },
                 "num_tokens_per_expert_list.extents[0] = 3: must be"},
                {"experts", [](auto& p) { p.num_experts = 4; },
                 "expert_start.extents[0] = 3: must be num_experts = 4"},
            });
}

TEST_CASE("moe.get_fused_mapping keeps its invariants") {
  memory m;
  queue q{cpu_selector};
  struct shape {
    std::int64_t tokens, k, experts, alignment;
  };
  for (const shape s : {shape{17, 2, 4, 16}, shape{1, 1, 1, 1}, shape{129, 6, 33, 64}, shape{65, 3, 1500, 1},
                        shape{40, 2, 5, 7}, shape{0, 4, 6, 8}}) {
    get_fused_mapping p;
    p.topk_idx = random_ids(m, s.tokens, s.k, s.experts, static_cast<unsigned>(s.tokens));
    p.num_experts = s.experts;
    p.alignment = s.alignment;
    const std::int64_t rows = infer(p)[0].extents[0];
    CHECK(infer(p)[0].worst_case);
    CHECK(rows == (s.tokens * s.k + (s.alignment - 1) * s.experts) / s.alignment * s.alignment);
    p = make(m, p.topk_idx, s.experts, rows, s.alignment);
    run(q, p);
    std::int32_t next = 0;
    for (std::int64_t e = 0; e < s.experts; ++e) {
      std::int64_t count = 0;
      for (std::int64_t i = 0; i < s.tokens * s.k; ++i)
        count += static_cast<const std::int64_t*>(p.topk_idx.data)[i] == e;
      CHECK(at<int>(p.expert_start, e) == next);
      CHECK(at<int>(p.num_live_per_expert, e) == count);
      next = at<int>(p.expert_end, e);
      CHECK(next - at<int>(p.expert_start, e) == (count + s.alignment - 1) / s.alignment * s.alignment);
      CHECK(at<int>(p.num_tokens_per_expert, e) == next - at<int>(p.expert_start, e));
      CHECK(at<std::int64_t>(p.num_tokens_per_expert_list, e) == at<int>(p.num_tokens_per_expert, e));
      int before = -1;
      for (int r = at<int>(p.expert_start, e); r < next; ++r) {
        const int flat = at<int>(p.pos_to_token_topk, r);
        if (r - at<int>(p.expert_start, e) >= count) {
          CHECK((flat == -1 && at<int>(p.pos_to_expert, r) == -1 && at<int>(p.pos_to_token, r) == -1));
          continue;
        }
        CHECK(flat > before);
        before = flat;
        CHECK(at<int>(p.pos_to_expert, r) == e);
        CHECK(at<int>(p.pos_to_token, r) == flat / s.k);
        CHECK(at<std::int64_t>(p.topk_idx, flat / s.k, flat % s.k) == e);
        CHECK(at<int>(p.token_topk_to_pos, flat / s.k, flat % s.k) == r);
      }
    }
    for (std::int64_t r = next; r < rows; ++r)
      CHECK((at<int>(p.pos_to_expert, r) == -1 && at<int>(p.pos_to_token_topk, r) == -1));
    for (std::int64_t i = 0; i < s.tokens * s.k; ++i)
      CHECK((static_cast<const std::int64_t*>(p.topk_idx.data)[i] < 0) ==
            (static_cast<const int*>(p.token_topk_to_pos.data)[i] == -1));
  }
  CHECK(m.guards_intact());
}

TEST_CASE("moe.get_fused_mapping traps: ids out of range count as none") {
  memory m;
  get_fused_mapping p = make(
      m, m.of<std::int64_t>({2, 2}, std::vector<std::int64_t>{1, std::int64_t{1} << 40, -5, 0}), 2, 4, 1);
  expect_trap(p, "topk_idx must be -1 or an expert id", 1);
  queue unchecked{cpu_selector};
  run(unchecked, p);
  CHECK(values(p.token_topk_to_pos) == ints{1, -1, -1, 0});
  CHECK(values(p.pos_to_token_topk) == ints{3, 0, -1, -1});
  CHECK(m.guards_intact());
}

TEST_CASE("moe.get_fused_mapping traps: too few rows cut the segments") {
  memory m;
  get_fused_mapping p =
      make(m, m.of<std::int64_t>({4, 2}, std::vector<int>{0, 1, 1, 2, 1, 1, 2, -1}), 3, 5, 3);
  expect_trap(p, "the rows must hold every segment", 1);
  queue unchecked{cpu_selector};
  run(unchecked, p);
  CHECK(values(p.expert_start) == ints{0, 3, 5});
  CHECK(values(p.expert_end) == ints{3, 5, 5});
  CHECK(values(p.num_tokens_per_expert) == ints{3, 2, 0});
  CHECK(values(p.num_live_per_expert) == ints{1, 2, 0});
  CHECK(values(p.token_topk_to_pos) == ints{0, 3, 4, -1, -1, -1, -1, -1});
  CHECK(values(p.pos_to_token_topk) == ints{0, -1, -1, 1, 2});
  CHECK(m.guards_intact());
}

TEST_CASE("moe.get_fused_mapping: optional outputs, fixed number of rows, no rows") {
  memory m;
  queue q{cpu_selector};
  get_fused_mapping p = good(m);
  p.num_live_per_expert = p.num_tokens_per_expert_list = {};
  CHECK_NOTHROW(run(q, p));
  p.num_expanded_tokens = 24;
  CHECK_NOTHROW(run(q, p));
  p.num_tokens_per_expert_list = m.make(dtype::i64, {0});
  CHECK_NOTHROW(run(q, p));
  CHECK_FALSE(infer(p)[0].worst_case);
  CHECK(infer(p)[0].extents == std::vector<std::int64_t>{24});
  get_fused_mapping none = make(m, m.of<std::int64_t>({2, 1}, std::vector<int>{-1, -1}), 3, 0, 16);
  run(q, none);
  CHECK(values(none.expert_end) == ints{0, 0, 0});
  CHECK(values(none.token_topk_to_pos) == ints{-1, -1});
  CHECK_FALSE(get_operation("moe.get_fused_mapping").capture_safe);
}
