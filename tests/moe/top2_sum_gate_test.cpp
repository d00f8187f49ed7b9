#include <cmath>
#include <limits>

#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::top2_sum_gate;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

top2_sum_gate make(memory& m, std::int64_t tokens, std::int64_t experts, std::int64_t k,
                   std::int64_t shared = 0) {
  top2_sum_gate p;
  p.logits = m.make(dtype::f32, {tokens, experts});
  p.bias = m.of<float>({experts}, std::vector<float>(static_cast<std::size_t>(experts)));
  p.topk_idx = m.make(dtype::i64, {tokens, k + shared});
  p.topk_weights = m.make(dtype::f32, {tokens, k + shared});
  p.num_topk = k;
  fill_normal(p.logits, 5);
  return p;
}

/// With every optional tensor: two shared experts, a map with three columns of which one or two are used.
top2_sum_gate full(memory& m) {
  top2_sum_gate p = make(m, 6, 8, 4, 2);
  p.use_shared_as_routed = true;
  p.num_shared_experts = 2;
  std::vector<int> map, count;
  for (int e = 0; e < 10; ++e) {
    count.push_back(1 + e % 2);
    for (int c = 0; c < 3; ++c) map.push_back(c < count.back() ? 10 * c + e : -1000);
  }
  p.to_physical_map = m.of<std::int32_t>({10, 3}, map);
  p.logical_count = m.of<std::int32_t>({10}, count);
  p.unmapped_topk_idx = m.make(dtype::i64, {6, 4}, {7, 1});
  for (int t = 0; t < 6; ++t)
    for (int j = 0; j < 4; ++j) at<std::int64_t>(p.unmapped_topk_idx, t, j) = (t + j) % 8;
  p.mask = m.of<std::uint8_t>({6}, std::vector<int>{1, 1, 0, 1, 1, 0});
  p.fix_routing_mask = m.of<std::uint8_t>({6}, std::vector<int>{0, 1, 1, 0, 0, 0});
  p.mask.dtype = p.fix_routing_mask.dtype = dtype::boolean;
  return p;
}

std::vector<std::int64_t> ids(const top2_sum_gate& p, std::int64_t t) {
  std::vector<std::int64_t> v;
  for (std::int64_t j = 0; j < p.topk_idx.extent(1); ++j) v.push_back(at<std::int64_t>(p.topk_idx, t, j));
  return v;
}
using list = std::vector<std::int64_t>;

void set_row(const tensor& t, std::int64_t row, const std::vector<float>& values) {
  for (std::size_t j = 0; j < values.size(); ++j) at<float>(t, row, static_cast<std::int64_t>(j)) = values[j];
}

}  // namespace

TEST_CASE("moe.top2_sum_gate refuses bad problems") {
  expect_refusals<top2_sum_gate>({
      {full,
       {
           {"logits absent", [](auto& p) { p.logits = {}; }, "logits = absent: is required"},
           {"dtype of logits", [](auto& p) { p.logits.dtype = dtype::i32; },
            "logits.dtype = i32: must be f32"},
           {"rank of logits", [](auto& p) { p.logits.rank = 1; }, "logits.rank = 1"},
           {"logits contiguous", [](auto& p) { p.logits.strides[0] = 16; }, "must be contiguous", 6},
           {"bias contiguous", [](auto& p) { p.bias.strides[0] = 2; }, "bias = ", 6},
           {"mask contiguous", [](auto& p) { p.mask.strides[0] = 2; }, "mask = ", 6},
           {"fix mask contiguous", [](auto& p) { p.fix_routing_mask.strides[0] = 2; },
            "fix_routing_mask = ", 6},
           {"map contiguous", [](auto& p) { p.to_physical_map.strides[0] = 4; }, "to_physical_map = ", 6},
           {"counts contiguous", [](auto& p) { p.logical_count.strides[0] = 2; }, "logical_count = ", 6},
           {"bias absent", [](auto& p) { p.bias = {}; }, "bias = absent: is required"},
           {"bias length", [](auto& p) { p.bias.extents[0] = 7; },
            "bias.extents[0] = 7: must be num_experts = 8"},
           {"mask dtype", [](auto& p) { p.mask.dtype = dtype::u8; }, "mask.dtype = u8: must be bool"},
           {"mask numel",
            [](auto& p) {
              p.mask.rank = 2;
              p.mask.extents = {6, 2};
              p.mask.strides = {2, 1};
            },
            "must have num_tokens = 6 elements"},
           {"map without counts", [](auto& p) { p.logical_count = {}; },
            "logical_count = absent: must be given together with to_physical_map"},
           {"counts without map", [](auto& p) { p.to_physical_map = {}; },
            "to_physical_map = absent: must be given together with logical_count"},
           {"rows of the map", [](auto& p) { p.to_physical_map.extents[0] = 9; },
            "to_physical_map.extents[0] = 9"},
           {"length of the counts", [](auto& p) { p.logical_count.extents[0] = 9; },
            "logical_count.extents[0] = 9"},
           {"dtype of the map", [](auto& p) { p.to_physical_map.dtype = dtype::f32; },
            "to_physical_map.dtype = f32: must be i32"},
           {"only one group number", [](auto& p) { p.num_groups = 4; },
            "num_groups = 4: must be positive exactly when num_topk_groups is", 3},
           {"only the groups kept", [](auto& p) { p.num_topk_groups = 4; },
            "num_groups = 0: must be positive exactly when", 3},
           {"negative groups", [](auto& p) { p.num_groups = p.num_topk_groups = -1; },
            "num_groups = -1: must be positive", 3},
           {"more kept than there are",
            [](auto& p) {
              p.num_groups = 2;
              p.num_topk_groups = 4;
            },
            "num_topk_groups = 4: must be 0 to num_groups = 2", 3},
           {"groups divide the experts",
            [](auto& p) {
              p.num_groups = 3;
              p.num_topk_groups = 2;
            },
            "num_groups = 3: must divide num_experts = 8", 3},
           {"group of one",
            [](auto& p) {
              p.num_groups = 8;
              p.num_topk_groups = 4;
            },
            "num_experts / num_groups = 1: must be 2 to 32", 4},
           {"too few candidates",
            [](auto& p) {
              p.num_groups = 4;
              p.num_topk_groups = 1;
            },
            "num_topk = 4: must be at most the experts of the kept groups, 2", 4},
           {"scoring", [](auto& p) { p.scoring_func = "identity"; },
            "scoring_func = 'identity': must be sigmoid, sqrtsoftplus or softmax"},
           {"shared: none",
            [](auto& p) {
              p.num_shared_experts = 0;
              p.topk_idx.extents[1] = p.topk_weights.extents[1] = 4;
              p.to_physical_map.extents[0] = p.logical_count.extents[0] = 8;
            },
            "num_shared_experts = 0: must be 1 or 2", 5},
           {"shared: three",
            [](auto& p) {
              p.num_shared_experts = 3;
              p.topk_idx.extents[1] = p.topk_idx.strides[0] = p.topk_weights.extents[1] =
                  p.topk_weights.strides[0] = 7;
              p.to_physical_map.extents[0] = p.logical_count.extents[0] = 11;
            },
            "num_shared_experts = 3: must be 1 or 2", 5},
           {"shared: columns of the map",
            [](auto& p) { p.to_physical_map.extents[1] = p.to_physical_map.strides[0] = 2; },
            "num_shared_experts = 2: needs a to_physical_map with that many extra columns", 5},
           {"shared: no map", [](auto& p) { p.to_physical_map = p.logical_count = {}; },
            "num_shared_experts = 2: needs a to_physical_map", 5},
           {"shared: slots",
            [](auto& p) {
              p.num_topk = p.unmapped_topk_idx.extents[1] = 3;
              p.topk_idx.extents[1] = p.topk_weights.extents[1] = 5;
            },
            "num_topk = 3: must be a multiple of num_shared_experts = 2", 5},
           {"shared: experts",
            [](auto& p) {
              p.num_topk = p.unmapped_topk_idx.extents[1] = 6;
              p.topk_idx.extents[1] = p.topk_weights.extents[1] = 8;
              p.topk_idx.strides[0] = p.topk_weights.strides[0] = 8;
            },
            "num_experts = 8: must be a multiple of 3", 5},
           {"unmapped shape", [](auto& p) { p.unmapped_topk_idx.extents[1] = 3; },
            "unmapped_topk_idx.extents[1] = 3: must be num_topk = 4"},
           {"unmapped dtype", [](auto& p) { p.unmapped_topk_idx.dtype = dtype::f64; },
            "unmapped_topk_idx.dtype = f64: must be i64"},
           {"unmapped stride",
            [](auto& p) {
              p.unmapped_topk_idx.strides = {8, 2};
            },
            "unmapped_topk_idx.strides[1] = 2: the last stride must be 1"},
           {"fix without unmapped", [](auto& p) { p.unmapped_topk_idx = {}; },
            "unmapped_topk_idx = absent: is required with fix_routing_mask"},
           {"fix shape", [](auto& p) { p.fix_routing_mask.extents[0] = 5; },
            "fix_routing_mask.extents[0] = 5: must be num_tokens = 6"},
           {"fix dtype", [](auto& p) { p.fix_routing_mask.dtype = dtype::i8; },
            "fix_routing_mask.dtype = i8: must be bool"},
           {"ep ranks divide", [](auto& p) { p.num_ep_ranks = 4; },
            "num_ep_ranks = 4: must divide the physical experts, num_experts + map columns - 1 = 10"},
           {"ep ranks", [](auto& p) { p.num_ep_ranks = 0; }, "num_ep_ranks = 0: must be at least 1"},
           {"ep rank", [](auto& p) { p.ep_rank = -1; }, "ep_rank = -1: must not be negative"},
           {"tp ranks", [](auto& p) { p.num_tp_ranks = 0; }, "num_tp_ranks = 0: must be at least 1"},
           {"tp rank", [](auto& p) { p.tp_rank = 1; }, "tp_rank = 1: must be 0 to num_tp_ranks - 1"},
           {"no slot",
            [](auto& p) {
              p.num_topk = p.unmapped_topk_idx.extents[1] = 0;
              p.topk_idx.extents[1] = p.topk_weights.extents[1] = 2;
            },
            "num_topk = 0: must be at least 1", 1},
       }},
      {[](memory& m) { return make(m, 2, 72, 31); },
       {
           {"experts by four",
            [](auto& p) { p.logits.extents[1] = p.logits.strides[0] = p.bias.extents[0] = 71; },
            "num_experts = 71: must be a multiple of 4", 2},
           {"slots above experts",
            [](auto& p) { p.logits.extents[1] = p.logits.strides[0] = p.bias.extents[0] = 28; },
            "num_topk = 31: must be at most num_experts = 28", 1},
           {"slots above 32",
            [](auto& p) {
              p.num_topk = 33;
              p.topk_idx.extents[1] = p.topk_idx.strides[0] = p.topk_weights.extents[1] =
                  p.topk_weights.strides[0] = 33;
            },
            "num_topk = 33: must be at most 32", 1},
           {"slots with shared above 32",
            [](auto& p) {
              p.use_shared_as_routed = true;
              p.num_shared_experts = 2;
              p.topk_idx.extents[1] = p.topk_idx.strides[0] = p.topk_weights.extents[1] =
                  p.topk_weights.strides[0] = 33;
            },
            "num_topk + num_shared_experts = 33: must be at most 32", 1},
           {"groups above 32",
            [](auto& p) {
              p.num_groups = 36;
              p.num_topk_groups = 18;
            },
            "num_groups = 36: must be at most 32", 4},
           {"experts per group",
            [](auto& p) {
              p.num_groups = 2;
              p.num_topk_groups = 1;
            },
            "num_experts / num_groups = 36: must be 2 to 32", 4},
       }},
  });
}

TEST_CASE("moe.top2_sum_gate: masked, fixed and mapped tokens") {
  memory m;
  top2_sum_gate p = full(m);
  p.ep_rank = 3;
  set_row(p.logits, 2, std::vector<float>(8, not_a_number));  // a masked token's logits are not looked at
  queue q{cpu_selector, queue_properties{.checked = true}};
  run(q, p);
  CHECK_NOTHROW(q.wait());
  for (std::int64_t t = 0; t < 6; ++t) {
    const bool masked = t == 2 || t == 5;
    float sum = 0;
    for (std::int64_t j = 0; j < 6; ++j) {
      if (masked) {
        CHECK(at<std::int64_t>(p.topk_idx, t, j) == -1);
        CHECK(at<float>(p.topk_weights, t, j) == 0);
        if (j < 4) CHECK(at<std::int64_t>(p.unmapped_topk_idx, t, j) == -1);
        continue;
      }
      const std::int64_t logical = j < 4 ? at<std::int64_t>(p.unmapped_topk_idx, t, j) : 8 + (j - 4);
      if (t == 1 && j < 4) CHECK(logical == (t + j) % 8);
      const std::int64_t count = 1 + logical % 2;
      CHECK(at<std::int64_t>(p.topk_idx, t, j) == 10 * ((3 + t * 23333) % count) + logical);
      if (j < 4) sum += at<float>(p.topk_weights, t, j);
      if (j >= 4) CHECK(at<float>(p.topk_weights, t, j) == 1);
    }
    if (!masked) CHECK(std::abs(sum - 1) < 1e-5f);
  }
  CHECK(m.guards_intact());
}

TEST_CASE("moe.top2_sum_gate: the hash of copies is 64-bit") {
  memory m;
  // Token 92037 is the first whose t * 23333 passes 2^31. All other tokens are masked.
  const std::int64_t tokens = 92038;
  top2_sum_gate p = make(m, tokens, 4, 1);
  p.to_physical_map = m.of<std::int32_t>({4, 3}, std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  p.logical_count = m.of<std::int32_t>({4}, std::vector<int>{3, 3, 3, 3});
  p.mask = m.of<std::uint8_t>({tokens}, std::vector<int>(static_cast<std::size_t>(tokens)));
  p.mask.dtype = dtype::boolean;
  static_cast<std::uint8_t*>(p.mask.data)[tokens - 1] = 1;
  set_row(p.logits, tokens - 1, {0, 0, 1, 0});
  queue q{cpu_selector};
  run(q, p);
  CHECK(at<std::int64_t>(p.topk_idx, tokens - 1, 0) == 6 + (tokens - 1) * 23333 % 3);
}

TEST_CASE("moe.top2_sum_gate: the bias selects but never weighs") {
  memory m;
  queue q{cpu_selector};
  for (const char* how : {"sigmoid", "SqrtSoftplus", "SOFTMAX"}) {
    top2_sum_gate p = make(m, 1, 4, 2);
    p.scoring_func = how;
    set_row(p.logits, 0, {1, 0.5f, 0, -1});
    set_row(p.bias, 0, {0});
    at<float>(p.bias, 3) = 10;
    run(q, p);
    CHECK(ids(p, 0) == list{3, 0});
    CHECK(at<float>(p.topk_weights, 0, 0) < at<float>(p.topk_weights, 0, 1));
    CHECK(std::abs(at<float>(p.topk_weights, 0, 0) + at<float>(p.topk_weights, 0, 1) - 1) < 1e-6f);
  }
}

TEST_CASE("moe.top2_sum_gate: experts of dropped groups never win") {
  memory m;
  queue q{cpu_selector};
  top2_sum_gate p = make(m, 2, 8, 2);
  p.num_groups = 2;
  p.num_topk_groups = 1;
  p.scoring_func = "softmax";
  set_row(p.logits, 0, {-1, -1, -1, -1, -2, -2, -2, -2});
  set_row(p.logits, 1, {5, -9, -9, -9, 1, 1, 0, 0});  // 5 - 9 < 1 + 1: the best expert's group loses
  run(q, p);
  CHECK(ids(p, 0) == list{0, 1});
  CHECK(ids(p, 1) == list{4, 5});
  p.num_topk_groups = 2;
  run(q, p);
  CHECK(ids(p, 1) == list{0, 4});
}

TEST_CASE("moe.top2_sum_gate: tensor-parallel masks keep the weights") {
  memory m;
  queue q{cpu_selector};
  top2_sum_gate p = make(m, 1, 8, 4);
  set_row(p.logits, 0, {8, 7, 6, 5, 4, 3, 2, 1});
  run(q, p);
  CHECK(ids(p, 0) == list{0, 1, 2, 3});
  p.num_ep_ranks = 4;
  p.num_tp_ranks = 2;
  p.tp_rank = 1;
  p.topk_idx = m.make(dtype::i64, {1, 4});
  tensor weights = p.topk_weights;
  p.topk_weights = m.make(dtype::f32, {1, 4});
  run(q, p);
  CHECK(ids(p, 0) == list{-1, -1, 0, 1});
  for (int j = 0; j < 4; ++j) CHECK(at<float>(p.topk_weights, 0, j) == at<float>(weights, 0, j));
}

TEST_CASE("moe.top2_sum_gate traps on logits that are not finite and keeps ids distinct and weights finite") {
  memory m;
  for (const char* how : {"sigmoid", "sqrtsoftplus", "softmax"}) {
    top2_sum_gate p = make(m, 5, 8, 3);
    p.scoring_func = how;
    set_row(p.logits, 1, {not_a_number, 3, 1, not_a_number, 0, -1, -2, -3});
    set_row(p.logits, 2, std::vector<float>(8, not_a_number));
    set_row(p.logits, 3, {inf, -inf, not_a_number, -inf, -inf, -inf, inf, -inf});
    set_row(p.logits, 4, std::vector<float>(8, -inf));
    expect_trap(p, "logits of a routed token must be finite", 8);
    queue unchecked{cpu_selector};
    run(unchecked, p);
    CHECK(ids(p, 1) == list{1, 2, 4});
    CHECK(ids(p, 2) == list{0, 1, 2});
    for (int j = 0; j < 3; ++j) CHECK(at<float>(p.topk_weights, 2, j) == 0);
    CHECK(std::abs(at<float>(p.topk_weights, 1, 0) + at<float>(p.topk_weights, 1, 1) +
                   at<float>(p.topk_weights, 1, 2) - 1) < 1e-5f);
    CHECK(ids(p, 3)[0] == 0);
    CHECK(ids(p, 3)[1] == 6);
    for (int t = 1; t < 5; ++t)
      for (int j = 0; j < 3; ++j) {
        CHECK(std::isfinite(at<float>(p.topk_weights, t, j)));
        CHECK((ids(p, t)[static_cast<std::size_t>(j)] >= 0 && ids(p, t)[static_cast<std::size_t>(j)] < 8));
        for (int i = 0; i < j; ++i)
          CHECK(ids(p, t)[static_cast<std::size_t>(i)] != ids(p, t)[static_cast<std::size_t>(j)]);
      }
  }
}

TEST_CASE("moe.top2_sum_gate: two valid experts besides NaN ones share the whole weight") {
  memory m;
  top2_sum_gate p = make(m, 1, 4, 3);
  set_row(p.logits, 0, {not_a_number, 2, not_a_number, 2});
  queue q{cpu_selector};
  run(q, p);
  CHECK(ids(p, 0) == list{1, 3, 0});
  CHECK(at<float>(p.topk_weights, 0, 0) == 0.5f);
  CHECK(at<float>(p.topk_weights, 0, 2) == 0);
}

TEST_CASE("moe.top2_sum_gate traps on fixed ids and counts out of range") {
  memory m;
  top2_sum_gate p = full(m);
  at<std::int64_t>(p.unmapped_topk_idx, 1, 2) = 8;
  at<std::int64_t>(p.unmapped_topk_idx, 1, 3) = -1;
  expect_trap(p, "unmapped_topk_idx of a fixed token must be an expert id", 6);
  at<std::int64_t>(p.unmapped_topk_idx, 1, 2) = std::int64_t{1} << 40;
  queue unchecked{cpu_selector};
  run(unchecked, p);
  CHECK(at<std::int64_t>(p.topk_idx, 1, 2) == -1);
  CHECK(at<float>(p.topk_weights, 1, 2) == 0);
  CHECK(at<std::int64_t>(p.topk_idx, 1, 0) >= 0);
  top2_sum_gate counts = full(m);
  for (int e = 0; e < 10; ++e) at<std::int32_t>(counts.logical_count, e) = e == 9 ? 4 : 3;
  expect_trap(counts, "logical_count must be 1 to the columns", 9);
  run(unchecked, counts);
  CHECK(at<std::int64_t>(counts.topk_idx, 0, 5) == -1);
  CHECK(m.guards_intact());
}

TEST_CASE("moe.top2_sum_gate: no tokens, masks of any shape, strided results") {
  memory m;
  queue q{cpu_selector};
  CHECK_NOTHROW(run(q, make(m, 0, 8, 2)));
  top2_sum_gate p = make(m, 4, 8, 2), wide = p;
  p.mask = m.of<std::uint8_t>({2, 2}, std::vector<int>{1, 0, 1, 1});
  p.mask.dtype = dtype::boolean;
  run(q, p);
  wide.mask = p.mask;
  wide.topk_idx = m.make(dtype::i64, {4, 2}, {5, 1});
  wide.topk_weights = m.make(dtype::f32, {4, 2}, {3, 1});
  run(q, wide);
  CHECK(ids(p, 1) == list{-1, -1});
  for (int t = 0; t < 4; ++t) {
    CHECK(ids(p, t) == ids(wide, t));
    CHECK(at<float>(p.topk_weights, t, 1) == at<float>(wide.topk_weights, t, 1));
  }
  CHECK(static_cast<std::int64_t*>(wide.topk_idx.data)[2] == static_cast<std::int64_t>(0xA5A5A5A5A5A5A5A5u));
  CHECK(m.guards_intact());
}
