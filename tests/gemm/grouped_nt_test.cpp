#include <cmath>
#include <limits>

#include "gemm/gemm_cases.hpp"

using namespace portile;
using namespace portile::test;
using gemm::grouped_nt;

namespace {

grouped_nt good(memory& m) {
  grouped_nt p;
  p.a = m.make(dtype::bf16, {12, 20});
  p.b = m.make(dtype::bf16, {3, 7, 20});
  p.expert_start = make_ids(m, {0, 4, 8});
  p.expert_end = make_ids(m, {4, 6, 12});
  p.out = m.make(dtype::f32, {12, 7});
  fill_normal(p.a, 1);
  fill_normal(p.b, 2);
  return p;
}
grouped_nt good_masked(memory& m) {
  grouped_nt p;
  p.a = m.make(dtype::e4m3, {3, 4, 160});
  p.b = m.make(dtype::e4m3, {3, 7, 160});
  p.a_sf = m.make(dtype::f32, {3, 4, 2});
  p.b_sf = m.make(dtype::f32, {3, 1, 2});
  p.masked_m = make_ids(m, {0, 4, 1});
  p.out = m.make(dtype::f32, {3, 4, 7});
  return p;
}

grouped_nt good_e2m1(memory& m) {
  grouped_nt p = good_masked(m);
  p.b = m.make(dtype::e2m1x2, {3, 7, 80});
  p.b_sf = m.make(dtype::f32, {3, 7, 5});
  return p;
}

struct exact_case {
  grouped_nt p;
  exact_factor a, b;
};
// Contiguous form over `rows` rows; the caller sets the segments.
exact_case make_exact(memory& m, dtype a, dtype b, std::int64_t experts, std::int64_t rows, std::int64_t cols,
                      std::int64_t k) {
  exact_case c;
  const bool q = a == dtype::e4m3, e2m1 = b == dtype::e2m1x2;
  c.a = make_factor(m, a, 0, rows, k, 11, 1, q ? 1 : 0, 128, true);
  c.b = make_factor(m, b, experts, cols, k, 12, 2, q ? (e2m1 ? 1 : 128) : 0, e2m1 ? 32 : 128);
  c.p.a = c.a.codes;
  c.p.b = c.b.codes;
  c.p.a_sf = c.a.scales;
  c.p.b_sf = c.b.scales;
  c.p.out = m.make(dtype::f32, {rows, cols}, {cols + 3, 1});
  return c;
}
// owner[i]: expert of row i, or -1 where nothing may be written.
void expect_rows(const exact_case& c, const std::vector<int>& owner) {
  for (std::int64_t i = 0; i < c.p.out.extent(0); ++i)
    for (std::int64_t j = 0; j < c.p.out.extent(1); ++j) {
      INFO("row " << i << ", column " << j);
      const int e = owner[static_cast<std::size_t>(i)];
      if (e < 0)
        REQUIRE(numeric::float_bits(at<float>(c.p.out, i, j)) == 0xA5A5A5A5u);
      else
        REQUIRE(at<float>(c.p.out, i, j) == product_at(c.a, 0, i, c.b, e, j));
    }
}

}  // namespace

TEST_CASE("gemm.grouped_nt refuses bad problems") {
  expect_refusals<grouped_nt>({
      {good,
       {
           {"b absent", [](auto& p) { p.b = {}; }, "b = absent: is required"},
           {"start absent", [](auto& p) { p.expert_start = {}; },
            "expert_start = absent: is required: a has two dimensions", 3},
           {"end absent", [](auto& p) { p.expert_end = {}; }, "expert_end = absent: is required", 3},
           {"both forms", [](auto& p) { p.masked_m = p.expert_end; }, "must be absent: a has two dimensions",
            3},
           {"number of experts", [](auto& p) { p.expert_start.extents[0] = 2; },
            "expert_start.extents[0] = 2: must be E = 3"},
           {"dtype of segments", [](auto& p) { p.expert_end.dtype = dtype::i64; },
            "expert_end.dtype = i64: must be i32"},
           {"live counts",
            [](auto& p) {
              p.num_live_per_expert = p.expert_end;
              p.num_live_per_expert.extents[0] = 1;
            },
            "num_live_per_expert.extents[0] = 1"},
           {"rank of out",
            [](auto& p) {
              p.out.rank = 3;
              p.out.extents = {3, 4, 7};
              p.out.strides = {28, 7, 1};
            },
            "out.rank = 3: must be 2, the rank of a", 3},
           {"rank of b", [](auto& p) { p.b.rank = 2; }, "b.rank = 2"},
           {"K of b", [](auto& p) { p.b.extents[2] = 19; }, "b.extents[2] = 19: must be K = 20"},
           {"rows of out", [](auto& p) { p.out.extents[0] = 11; }, "out.extents[0] = 11: must be M = 12"},
           {"mixed types", [](auto& p) { p.b.dtype = dtype::f32; },
            "b.dtype = f32: must be bf16, the type of a", 1},
           {"scales of plain factors",
            [](auto& p) {
              p.a_sf = p.out;
              p.a_sf.extents = {12, 1};
            },
            "a_sf = f32[12, 1]", 2},
           {"scales of b with plain factors",
            [](auto& p) {
              p.b_sf = p.b;
              p.b_sf.dtype = dtype::f32;
              p.b_sf.extents = {3, 1, 1};
            },
            "b_sf = f32[3, 1, 1]", 2},
           {"last stride of a",
            [](auto& p) {
              p.a.strides = {1, 12};
            },
            "the last stride must be 1"},
           {"out overlaps itself",
            [](auto& p) {
              p.out.strides = {0, 1};
            },
            "must not overlap itself"},
           {"tf32_rounding", [](auto& p) { p.tf32_rounding = "even"; }, "tf32_rounding = 'even'"},
       }},
      {good_masked,
       {
           {"count absent", [](auto& p) { p.masked_m = {}; },
            "masked_m = absent: is required: a has three dimensions", 3},
           {"segments too", [](auto& p) { p.expert_start = p.masked_m; }, "expert_start = i32[3]", 3},
           {"ends too", [](auto& p) { p.expert_end = p.masked_m; }, "expert_end = i32[3]", 3},
           {"live counts too", [](auto& p) { p.num_live_per_expert = p.masked_m; },
            "num_live_per_expert = i32[3]", 3},
           {"rank of out",
            [](auto& p) {
              p.out.rank = 2;
              p.out.extents = {12, 7};
              p.out.strides = {7, 1};
            },
            "out.rank = 2: must be 3, the rank of a", 3},
           {"rank of a_sf",
            [](auto& p) {
              p.a_sf.rank = 2;
              p.a_sf.extents = {12, 2};
            },
            "a_sf.rank = 2: must be 3, the rank of a", 3},
           {"experts of a", [](auto& p) { p.a.extents[0] = 2; }, "must be E = "},
           {"scales absent", [](auto& p) { p.b_sf = {}; },
            "b_sf = absent: is required: a and b are quantised", 2},
           {"scales of a absent", [](auto& p) { p.a_sf = {}; }, "a_sf = absent: is required", 2},
           {"shape of a_sf", [](auto& p) { p.a_sf.extents[2] = 1; }, "a_sf.extents[2] = 1", 2},
           {"bf16 b", [](auto& p) { p.b.dtype = dtype::bf16; }, "b.dtype = bf16: must be e4m3 or e2m1x2", 1},
           {"shape of b_sf", [](auto& p) { p.b_sf.extents[2] = 1; }, "b_sf.extents[2] = 1", 2},
       }},
      {good_e2m1,
       {{"odd K", [](auto& p) { p.a.extents[2] = 159; }, "must be a multiple of 2", 1},
        {"e2m1x2 with 128 x 128 scales",
         [](auto& p) {
           p.b_sf.extents = {3, 1, 2};
         },
         "b_sf.extents[1] = 1", 2}}},
  });
}

TEST_CASE("gemm.grouped_nt computes its segments and leaves other rows alone") {
  struct types {
    dtype a, b;
  };
  const auto pair = GENERATE(types{dtype::bf16, dtype::bf16}, types{dtype::f32, dtype::f32},
                             types{dtype::e4m3, dtype::e4m3}, types{dtype::e4m3, dtype::e2m1x2});
  memory m;
  exact_case c = make_exact(m, pair.a, pair.b, 4, 300, 35, 160);
  // Sizes 1, 127 and 129 in any order, an empty one, gaps between them.
  c.p.expert_start = make_ids(m, {140, 2, 5, 10});
  c.p.expert_end = make_ids(m, {269, 3, 5, 137});
  const tensor live = make_ids(m, {129, 1, 0, 100});
  std::vector<int> owner(300, -1);
  std::fill(owner.begin() + 140, owner.begin() + 269, 0);
  owner[2] = 1;
  std::fill(owner.begin() + 10, owner.begin() + 137, 3);
  queue q{cpu_selector, queue_properties{.checked = true}};
  run(q, c.p);
  q.wait();
  expect_rows(c, owner);

  c.p.num_live_per_expert = live;
  c.p.out = m.make(dtype::f32, {300, 35}, {38, 1});
  std::fill(owner.begin() + 110, owner.begin() + 137, -1);
  run(q, c.p);
  q.wait();
  expect_rows(c, owner);
  CHECK(at<unsigned char>(c.p.out, 0, 0) == memory::poison);
  CHECK(m.guards_intact());
}

TEST_CASE("gemm.grouped_nt does not read rows that do not count, nor their scales") {
  memory m;
  exact_case c = make_exact(m, dtype::e4m3, dtype::e4m3, 2, 20, 5, 130);
  c.p.expert_start = make_ids(m, {0, 8});
  c.p.expert_end = make_ids(m, {8, 16});
  c.p.num_live_per_expert = make_ids(m, {3, 8});
  std::vector<int> owner(20, -1);
  std::fill(owner.begin(), owner.begin() + 3, 0);
  std::fill(owner.begin() + 8, owner.begin() + 16, 1);
  for (std::int64_t i = 0; i < 20; ++i)
    if (owner[static_cast<std::size_t>(i)] < 0) {
      at<float>(c.p.a_sf, i, 0) = std::numeric_limits<float>::quiet_NaN();
      for (std::int64_t k = 0; k < 130; ++k) at<unsigned char>(c.p.a, i, k) = 0x7f;
    }
  queue q{cpu_selector};
  run(q, c.p);
  expect_rows(c, owner);
}

TEST_CASE("gemm.grouped_nt: one expert is gemm.nt, accumulation adds") {
  memory m;
  grouped_nt p;
  p.a = m.make(dtype::bf16, {33, 70});
  p.b = m.make(dtype::bf16, {1, 17, 70});
  p.expert_start = make_ids(m, {0});
  p.expert_end = make_ids(m, {33});
  p.out = m.make(dtype::bf16, {33, 17});
  fill_normal(p.a, 3);
  fill_normal(p.b, 4);
  gemm::nt single;
  single.a = p.a;
  single.b = make_tensor(p.b.data, dtype::bf16, {17, 70});
  single.out = m.make(dtype::bf16, {33, 17});
  queue q{cpu_selector};
  for (bool accumulate : {false, true}) {
    p.accumulate = single.accumulate = accumulate;
    run(q, p);
    run(q, single);
    for (std::int64_t i = 0; i < 33 * 17; ++i)
      REQUIRE(at<numeric::bf16>(p.out, i / 17, i % 17) == at<numeric::bf16>(single.out, i / 17, i % 17));
  }
}

TEST_CASE("gemm.grouped_nt: masked form") {
  memory m;
  exact_case c;
  c.a = make_factor(m, dtype::e4m3, 3, 40, 200, 7, 3, 1, 128, true);
  c.b = make_factor(m, dtype::e4m3, 3, 9, 200, 8, 0, 128, 128);
  c.p.a = c.a.codes;
  c.p.a_sf = c.a.scales;
  c.p.b = c.b.codes;
  c.p.b_sf = c.b.scales;
  c.p.masked_m = make_ids(m, {0, 40, 7});
  c.p.out = m.make(dtype::f32, {3, 40, 9}, {400, 9, 1});
  queue q{cpu_selector, queue_properties{.checked = true}};
  run(q, c.p);
  q.wait();
  const std::int64_t count[] = {0, 40, 7};
  for (std::int64_t e = 0; e < 3; ++e)
    for (std::int64_t i = 0; i < 40; ++i)
      for (std::int64_t j = 0; j < 9; ++j) {
        const float got = static_cast<float*>(c.p.out.data)[e * 400 + i * 9 + j];
        INFO(e << ", " << i << ", " << j);
        if (i < count[e])
          REQUIRE(got == product_at(c.a, e, i, c.b, e, j));
        else
          REQUIRE(numeric::float_bits(got) == 0xA5A5A5A5u);
      }
  CHECK(m.guards_intact());
}

TEST_CASE("gemm.grouped_nt reports broken segments and stays inside") {
  struct row {
    std::string text;
    std::int64_t index;
    std::vector<std::int32_t> start, end, live;
    std::vector<int> owner;
  };
  const row table[] = {
      {"expert_start <= expert_end <= rows of a", 1, {0, 4}, {4, 1 << 30}, {}, {0, 0, 0, 0, 1, 1, 1, 1}},
      {"expert_start <= expert_end <= rows of a", 0, {-2, 4}, {2, 6}, {}, {0, 0, -1, -1, 1, 1, -1, -1}},
      {"expert_start <= expert_end <= rows of a", 1, {0, 6}, {2, 4}, {}, {0, 0, -1, -1, -1, -1, -1, -1}},
      {"expert_start <= expert_end <= rows of a",
       0,
       {-2147483647 - 1, 0},
       {2147483647, 0},
       {},
       {0, 0, 0, 0, 0, 0, 0, 0}},
      {"num_live_per_expert must be", 0, {0, 4}, {4, 8}, {5, 4}, {0, 0, 0, 0, 1, 1, 1, 1}},
      {"num_live_per_expert must be", 1, {0, 4}, {4, 8}, {1, -1}, {0, -1, -1, -1, -1, -1, -1, -1}},
      {"must not overlap", 1, {0, 2}, {4, 6}, {}, {0, 0, 0, 0, 1, 1, -1, -1}},
      {"must not overlap", 1, {2, 0}, {4, 6}, {}, {1, 1, 0, 0, 1, 1, -1, -1}},
      // Dead rows may overlap.
      {"", -1, {0, 2}, {4, 6}, {2, 4}, {0, 0, 1, 1, 1, 1, -1, -1}},
  };
  for (const row& r : table) {
    INFO(r.text << " at expert " << r.index);
    memory m;
    exact_case c = make_exact(m, dtype::bf16, dtype::bf16, 2, 8, 40, 20);
    c.p.expert_start = make_ids(m, r.start);
    c.p.expert_end = make_ids(m, r.end);
    if (!r.live.empty()) c.p.num_live_per_expert = make_ids(m, r.live);
    if (r.index >= 0) {
      expect_trap(c.p, r.text, r.index);
    } else {
      queue checked{cpu_selector, queue_properties{.checked = true}};
      run(checked, c.p);
      CHECK_NOTHROW(checked.wait());
    }
    expect_rows(c, r.owner);
    queue q{cpu_selector};
    CHECK_NOTHROW(run(q, c.p));
    expect_rows(c, r.owner);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("gemm.grouped_nt reports broken counts of the masked form") {
  for (std::int32_t count : {-1, 5, 1 << 30}) {
    memory m;
    grouped_nt p;
    const exact_factor a = make_factor(m, dtype::bf16, 2, 4, 20, 1),
                       b = make_factor(m, dtype::bf16, 2, 3, 20, 2);
    p.a = a.codes;
    p.b = b.codes;
    p.masked_m = make_ids(m, {2, count});
    p.out = m.make(dtype::f32, {2, 4, 3});
    expect_trap(p, "masked_m must be 0 to M_max", 1);
    const auto* out = static_cast<const float*>(p.out.data);
    for (std::int64_t i = 0; i < 4; ++i) {
      if (count > 0)
        CHECK(out[12 + i * 3] == product_at(a, 1, i, b, 1, 0));
      else
        CHECK(numeric::float_bits(out[12 + i * 3]) == 0xA5A5A5A5u);
    }
    CHECK(m.guards_intact());
  }
}

TEST_CASE("gemm.grouped_nt without rows, experts or depth") {
  queue q{cpu_selector};
  memory m;
  grouped_nt p = good(m);
  grouped_nt none = p;
  none.a.extents[0] = none.out.extents[0] = 0;
  none.a.data = none.out.data = nullptr;
  none.expert_start = none.expert_end = make_ids(m, {0, 0, 0});
  CHECK_NOTHROW(run(q, none));
  none = p;
  none.b.extents[0] = none.expert_start.extents[0] = none.expert_end.extents[0] = 0;
  CHECK_NOTHROW(run(q, none));
  CHECK(memory::untouched(p.out));
  none = p;
  none.a.extents[1] = none.b.extents[2] = 0;
  none.accumulate = true;
  run(q, none);
  CHECK(memory::untouched(p.out));
  none.accumulate = false;
  run(q, none);
  CHECK(at<float>(p.out, 0, 6) == 0.0f);
  CHECK(at<float>(p.out, 11, 0) == 0.0f);
  CHECK(numeric::float_bits(at<float>(p.out, 6, 0)) == 0xA5A5A5A5u);
}

TEST_CASE("gemm.grouped_nt infers the result of both forms") {
  memory m;
  grouped_nt p = good(m), masked = good_masked(m);
  p.out = masked.out = {};
  CHECK(infer(p).at(0).extents == std::vector<std::int64_t>{12, 7});
  CHECK(infer(masked).at(0).extents == std::vector<std::int64_t>{3, 4, 7});
}
