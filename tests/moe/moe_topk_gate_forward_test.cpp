#include <cmath>
#include <limits>
#include <set>

#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::moe_topk_gate_forward;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();
using list = std::vector<std::int64_t>;

moe_topk_gate_forward make(memory& m, std::int64_t tokens, std::int64_t experts, std::int64_t k,
                           std::int64_t shared = 0) {
  moe_topk_gate_forward p;
  p.logits = m.make(dtype::f32, {tokens, experts});
  fill_normal(p.logits, 5);
  p.topk_idx = m.make(dtype::i64, {tokens, k + shared});
  p.topk_weights = m.make(dtype::f32, {tokens, k + shared});
  p.scores = m.make(dtype::f32, {tokens, experts});
  p.num_topk = k;
  p.use_shared_as_routed = shared > 0;
  p.num_shared_experts = shared;
  return p;
}

tensor flags(memory& m, const std::vector<int>& v) {
  tensor t = m.of<std::uint8_t>({static_cast<std::int64_t>(v.size())}, v);
  t.dtype = dtype::boolean;
  return t;
}

/// With every optional tensor; six tokens: plain, fixed, masked, random, image, masked and random.
moe_topk_gate_forward full(memory& m) {
  moe_topk_gate_forward p = make(m, 6, 8, 3, 2);
  p.bias = m.make(dtype::f32, {8});
  p.image_bias = m.make(dtype::f32, {8});
  fill_normal(p.bias, 1);
  fill_normal(p.image_bias, 2);
  std::vector<int> map, count;
  for (int e = 0; e < 10; ++e) {
    count.push_back(1 + e % 2);
    for (int c = 0; c < 2; ++c) map.push_back(c < count.back() ? 10 * c + e : -1000);
  }
  p.to_physical_map = m.of<std::int32_t>({10, 2}, map);
  p.logical_count = m.of<std::int32_t>({10}, count);
  p.unmapped_topk_idx = m.make(dtype::i64, {6, 3}, {5, 1});
  for (int t = 0; t < 6; ++t)
    for (int j = 0; j < 3; ++j) at<std::int64_t>(p.unmapped_topk_idx, t, j) = (t + j) % 8;
  p.fix_routing_mask = flags(m, {0, 1, 1, 1, 0, 0});
  p.mask = flags(m, {1, 1, 0, 1, 1, 0});
  p.force_random = flags(m, {0, 0, 0, 1, 0, 1});
  p.image_token_mask = flags(m, {0, 0, 0, 0, 1, 1});
  return p;
}

list ids(const moe_topk_gate_forward& p, std::int64_t t) {
  list v;
  for (std::int64_t j = 0; j < p.topk_idx.extent(1); ++j) v.push_back(at<std::int64_t>(p.topk_idx, t, j));
  return v;
}

void set_row(const tensor& t, std::int64_t row, const std::vector<float>& values) {
  for (std::size_t j = 0; j < values.size(); ++j) at<float>(t, row, static_cast<std::int64_t>(j)) = values[j];
}

}  // namespace

TEST_CASE("moe.moe_topk_gate_forward refuses bad problems") {
  expect_refusals<moe_topk_gate_forward>({
      {full,
       {
           {"logits absent", [](auto& p) { p.logits = {}; }, "logits = absent: is required"},
           {"logits contiguous", [](auto& p) { p.logits.strides[0] = 9; }, "must be contiguous", 6},
           {"bias contiguous", [](auto& p) { p.bias.strides[0] = 2; }, "bias = ", 6},
           {"image bias contiguous", [](auto& p) { p.image_bias.strides[0] = 2; }, "image_bias = ", 6},
           {"image mask contiguous", [](auto& p) { p.image_token_mask.strides[0] = 2; },
            "image_token_mask = ", 6},
           {"mask contiguous", [](auto& p) { p.mask.strides[0] = 2; }, "mask = ", 6},
           {"fix mask contiguous", [](auto& p) { p.fix_routing_mask.strides[0] = 2; },
            "fix_routing_mask = ", 6},
           {"force_random contiguous", [](auto& p) { p.force_random.strides[0] = 2; }, "force_random = ", 6},
           {"map contiguous", [](auto& p) { p.to_physical_map.strides[0] = 3; }, "to_physical_map = ", 6},
           {"counts contiguous", [](auto& p) { p.logical_count.strides[0] = 2; }, "logical_count = ", 6},
           {"bias length", [](auto& p) { p.bias.extents[0] = 7; },
            "bias.extents[0] = 7: must be num_experts = 8"},
           {"image bias alone", [](auto& p) { p.image_token_mask = {}; },
            "image_token_mask = absent: must be given together with image_bias", 5},
           {"image mask alone", [](auto& p) { p.image_bias = {}; },
            "image_bias = absent: must be given together with image_token_mask", 5},
           {"image mask length", [](auto& p) { p.image_token_mask.extents[0] = 5; },
            "image_token_mask.extents[0] = 5: must be num_tokens = 6"},
           {"force_random length", [](auto& p) { p.force_random.extents[0] = 5; },
            "force_random.extents[0] = 5: must be num_tokens = 6"},
           {"force_random dtype", [](auto& p) { p.force_random.dtype = dtype::u8; },
            "force_random.dtype = u8: must be bool"},
           {"mask numel",
            [](auto& p) {
              p.mask.rank = 2;
              p.mask.extents = {6, 2};
              p.mask.strides = {2, 1};
            },
            "must have num_tokens = 6 elements"},
           {"map without counts", [](auto& p) { p.logical_count = {}; },
            "logical_count = absent: must be given together with to_physical_map"},
           {"rows of the map", [](auto& p) { p.to_physical_map.extents[0] = 8; },
            "to_physical_map.extents[0] = 8"},
           {"length of the counts", [](auto& p) { p.logical_count.extents[0] = 8; },
            "logical_count.extents[0] = 8"},
           {"scoring", [](auto& p) { p.scoring_func = "sigmoid"; },
            "scoring_func = 'sigmoid': must be sqrtsoftplus", 3},
           {"fix without unmapped", [](auto& p) { p.unmapped_topk_idx = {}; },
            "unmapped_topk_idx = absent: is required with fix_routing_mask"},
           {"unmapped stride",
            [](auto& p) {
              p.unmapped_topk_idx.strides = {6, 2};
            },
            "the last stride must be 1"},
           {"unmapped shape", [](auto& p) { p.unmapped_topk_idx.extents[1] = 2; },
            "unmapped_topk_idx.extents[1] = 2"},
           {"ids contiguous", [](auto& p) { p.topk_idx.strides[0] = 6; }, "must be contiguous", 6},
           {"weights contiguous", [](auto& p) { p.topk_weights.strides[0] = 6; }, "must be contiguous", 6},
           {"scores contiguous", [](auto& p) { p.scores.strides[0] = 9; }, "must be contiguous", 6},
           {"ids dtype", [](auto& p) { p.topk_idx.dtype = dtype::i32; }, "topk_idx.dtype = i32: must be i64"},
           {"ep rank", [](auto& p) { p.ep_rank = -1; }, "ep_rank = -1: must not be negative"},
       }},
      {[](memory& m) {
         auto p = make(m, 2, 72, 31);
         p.scores = {};
         return p;
       },
       {
           {"experts by four", [](auto& p) { p.logits.extents[1] = p.logits.strides[0] = 71; },
            "num_experts = 71: must be a multiple of 4", 2},
           {"slots above experts", [](auto& p) { p.logits.extents[1] = p.logits.strides[0] = 28; },
            "num_topk = 31: must be at most num_experts = 28", 1},
           {"no slot", [](auto& p) { p.num_topk = p.topk_idx.extents[1] = p.topk_weights.extents[1] = 0; },
            "num_topk = 0: must be at least 1", 1},
           {"slots above 32",
            [](auto& p) {
              p.num_topk = 33;
              p.topk_idx.extents[1] = p.topk_idx.strides[0] = 33;
              p.topk_weights.extents[1] = p.topk_weights.strides[0] = 33;
            },
            "num_topk = 33: must be at most 32", 1},
           {"slots with shared above 32",
            [](auto& p) {
              p.use_shared_as_routed = true;
              p.num_shared_experts = 2;
              p.topk_idx.extents[1] = p.topk_idx.strides[0] = 33;
              p.topk_weights.extents[1] = p.topk_weights.strides[0] = 33;
            },
            "num_topk + num_shared_experts = 33: must be at most 32", 1},
           {"no shared expert", [](auto& p) { p.use_shared_as_routed = true; },
            "num_shared_experts = 0: must be 1 or 2", 4},
           {"three shared experts",
            [](auto& p) {
              p.use_shared_as_routed = true;
              p.num_shared_experts = 3;
              p.topk_idx.extents[1] = p.topk_idx.strides[0] = 34;
              p.topk_weights.extents[1] = p.topk_weights.strides[0] = 34;
            },
            "num_shared_experts = 3: must be 1 or 2", 4},
       }},
  });
}

TEST_CASE("moe.moe_topk_gate_forward: masked before random before fixed before plain") {
  memory m;
  moe_topk_gate_forward p = full(m);
  p.ep_rank = 7;
  set_row(p.logits, 2, std::vector<float>(8, not_a_number));  // Masked and forced tokens are not looked at.
  set_row(p.logits, 3, std::vector<float>(8, not_a_number));
  queue q{cpu_selector, queue_properties{.checked = true}};
  run(q, p);
  CHECK_NOTHROW(q.wait());
  for (std::int64_t t : {2, 5})
    for (std::int64_t j = 0; j < 5; ++j) {
      CHECK(at<std::int64_t>(p.topk_idx, t, j) == -1);
      CHECK(at<float>(p.topk_weights, t, j) == 0);
      CHECK(at<float>(p.scores, t, j) == 0);
      if (j < 3) CHECK(at<std::int64_t>(p.unmapped_topk_idx, t, j) == -1);
    }
  for (std::int64_t j = 0; j < 5; ++j) {
    CHECK(at<float>(p.topk_weights, 3, j) > 0);
    CHECK((at<std::int64_t>(p.topk_idx, 3, j) >= 0 &&
           at<std::int64_t>(p.topk_idx, 3, j) < 15));  // sum of the counts
    if (j < 3) CHECK(at<std::int64_t>(p.unmapped_topk_idx, 3, j) == -1);
  }
  for (std::int64_t t : {0, 1, 4})
    for (std::int64_t j = 0; j < 5; ++j) {
      const std::int64_t logical = j < 3 ? at<std::int64_t>(p.unmapped_topk_idx, t, j) : 8 + (j - 3);
      if (t == 1 && j < 3) CHECK(logical == 1 + j);
      CHECK(at<std::int64_t>(p.topk_idx, t, j) == 10 * ((7 + t * 23333) % (1 + logical % 2)) + logical);
      if (j >= 3) CHECK(at<float>(p.topk_weights, t, j) == 1);
    }
  // Token 4 is an image token: its best id maximises score + image_bias.
  std::int64_t best = 0;
  for (std::int64_t e = 1; e < 8; ++e)
    if (at<float>(p.scores, 4, e) + at<float>(p.image_bias, e) >
        at<float>(p.scores, 4, best) + at<float>(p.image_bias, best))
      best = e;
  CHECK(at<std::int64_t>(p.unmapped_topk_idx, 4, 0) == best);
  CHECK(m.guards_intact());
}

TEST_CASE("moe.moe_topk_gate_forward: random routes are distinct, uniform and repeat") {
  memory m;
  queue q{cpu_selector};
  const std::int64_t tokens = 2000;
  moe_topk_gate_forward p = make(m, tokens, 12, 4, 1);
  p.scores = {};
  p.force_random = flags(m, std::vector<int>(static_cast<std::size_t>(tokens), 1));
  run(q, p);
  std::vector<double> hits(13);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const list row = ids(p, t);
    CHECK(std::set<std::int64_t>(row.begin(), row.end()).size() == 5);
    for (std::int64_t id : row) {
      REQUIRE((id >= 0 && id < 13));
      hits[static_cast<std::size_t>(id)] += 1;
    }
    for (std::int64_t j = 0; j < 5; ++j)
      CHECK((at<float>(p.topk_weights, t, j) > 0 && at<float>(p.topk_weights, t, j) <= 1));
  }
  double chi = 0;
  const double want = static_cast<double>(tokens) * 5 / 13;
  for (double h : hits) chi += (h - want) * (h - want) / want;
  CHECK(chi < 4 * 12);
  const list before = ids(p, 17);
  run(q, p);
  CHECK(ids(p, 17) == before);
  p.ep_rank = 1;
  run(q, p);
  CHECK(ids(p, 17) != before);
  // As many experts as slots: every row is a permutation.
  moe_topk_gate_forward tight = make(m, 20, 4, 4);
  tight.force_random = flags(m, std::vector<int>(20, 1));
  run(q, tight);
  for (std::int64_t t = 0; t < 20; ++t) {
    const list row = ids(tight, t);
    CHECK(std::set<std::int64_t>(row.begin(), row.end()) == std::set<std::int64_t>{0, 1, 2, 3});
  }
}

TEST_CASE("moe.moe_topk_gate_forward traps") {
  memory m;
  queue unchecked{cpu_selector};
  moe_topk_gate_forward p = make(m, 4, 8, 3);
  set_row(p.logits, 1, {not_a_number, 3, 1, not_a_number, 0, -1, -2, -3});
  set_row(p.logits, 2, {inf, -inf, 0, 0, 0, 0, not_a_number, 0});
  expect_trap(p, "logits of a routed token must be finite", 8);
  run(unchecked, p);
  CHECK(ids(p, 1) == list{1, 2, 4});
  CHECK(ids(p, 2) == list{0, 2, 3});
  for (int j = 0; j < 3; ++j) CHECK(std::isfinite(at<float>(p.topk_weights, 2, j)));
  CHECK(at<float>(p.topk_weights, 2, 0) == 0);
  CHECK(at<float>(p.topk_weights, 2, 1) == 0.5f);

  moe_topk_gate_forward f = full(m);
  at<std::int64_t>(f.unmapped_topk_idx, 1, 1) = std::int64_t{1} << 33;
  expect_trap(f, "unmapped_topk_idx of a fixed token must be an expert id", 4);
  CHECK(ids(f, 1)[1] == -1);
  CHECK(at<float>(f.topk_weights, 1, 1) == 0);

  moe_topk_gate_forward c = full(m);
  at<std::int32_t>(c.logical_count, 9) = 3;
  expect_trap(c, "logical_count must be 1 to the columns", 9);
  CHECK(ids(c, 0)[4] == -1);

  moe_topk_gate_forward r = full(m);
  r.mask = r.fix_routing_mask = {};
  r.force_random = flags(m, {0, 0, 0, 1, 0, 0});
  for (int e = 0; e < 10; ++e) at<std::int32_t>(r.logical_count, e) = e < 8 ? 1 : -2;
  expect_trap(r, "force_random needs as many physical experts", 3);
  CHECK(ids(r, 3) == list{-1, -1, -1, -1, -1});
  CHECK(m.guards_intact());
}

TEST_CASE("moe.moe_topk_gate_forward: no tokens, zero logits, no optional tensor") {
  memory m;
  queue q{cpu_selector};
  CHECK_NOTHROW(run(q, make(m, 0, 8, 2)));
  moe_topk_gate_forward p = make(m, 1, 8, 4);
  set_row(p.logits, 0, std::vector<float>(8, 0));
  p.scores = {};
  run(q, p);
  CHECK(ids(p, 0) == list{0, 1, 2, 3});
  CHECK(at<float>(p.topk_weights, 0, 3) == 0.25f);
  p.scoring_func = "SQRTSOFTPLUS";
  p.routed_scaling_factor = 2;
  run(q, p);
  CHECK(at<float>(p.topk_weights, 0, 3) == 0.5f);
  CHECK(m.guards_intact());
}
