#include <cmath>
#include <limits>

#include "gemm/gemm_cases.hpp"

using namespace portile;
using namespace portile::test;
using gemm::grouped_tn;

namespace {

grouped_tn good(memory& m) {
  grouped_tn p;
  p.a = m.make(dtype::bf16, {12, 5});
  p.b = m.make(dtype::bf16, {12, 7});
  p.expert_start = make_ids(m, {0, 4, 8});
  p.expert_end = make_ids(m, {4, 6, 12});
  p.out = m.make(dtype::f32, {3, 5, 7});
  return p;
}

struct exact_case {
  grouped_tn p;
  exact_factor a, b;
};
exact_case make_exact(memory& m, dtype type, std::int64_t rows, std::int64_t am, std::int64_t bn,
                      const std::vector<std::int32_t>& start, const std::vector<std::int32_t>& end,
                      const std::vector<std::int32_t>& live = {}) {
  exact_case c;
  c.a = make_factor(m, type, 0, rows, am, 21, 3);
  c.b = make_factor(m, type, 0, rows, bn, 22, 1);
  c.p.a = c.a.codes;
  c.p.b = c.b.codes;
  c.p.expert_start = make_ids(m, start);
  c.p.expert_end = make_ids(m, end);
  if (!live.empty()) c.p.num_live_per_expert = make_ids(m, live);
  const auto experts = static_cast<std::int64_t>(start.size());
  c.p.out = m.make(dtype::f32, {experts, am, bn}, {am * (bn + 2), bn + 2, 1});
  return c;
}
// owner[r]: expert of row r, or -1. `old`: value of out before, where it is added.
void expect_sums(const exact_case& c, const std::vector<int>& owner, float old = 0) {
  for (std::int64_t e = 0; e < c.p.out.extent(0); ++e)
    for (std::int64_t i = 0; i < c.p.out.extent(1); ++i)
      for (std::int64_t j = 0; j < c.p.out.extent(2); ++j) {
        double sum = old;
        for (std::size_t r = 0; r < owner.size(); ++r)
          if (owner[r] == e)
            sum += c.a.at(0, static_cast<std::int64_t>(r), i) * c.b.at(0, static_cast<std::int64_t>(r), j);
        INFO(e << ", " << i << ", " << j);
        REQUIRE(static_cast<float*>(c.p.out.data)[e * c.p.out.stride(0) + i * c.p.out.stride(1) + j] == sum);
      }
}

}  // namespace

TEST_CASE("gemm.grouped_tn refuses bad problems") {
  expect_refusals<grouped_tn>(
      good,
      {
          {"a absent", [](auto& p) { p.a = {}; }, "a = absent: is required"},
          {"start absent", [](auto& p) { p.expert_start = {}; }, "expert_start = absent: is required"},
          {"end absent", [](auto& p) { p.expert_end = {}; }, "expert_end = absent: is required"},
          {"mixed types", [](auto& p) { p.b.dtype = dtype::f32; },
           "b.dtype = f32: must be bf16, the type of a", 1},
          {"quantised", [](auto& p) { p.a.dtype = dtype::e4m3; }, "a.dtype = e4m3: must be bf16 or f32"},
          {"dtype of out", [](auto& p) { p.out.dtype = dtype::bf16; }, "out.dtype = bf16: must be f32"},
          {"rows of b", [](auto& p) { p.b.extents[0] = 11; }, "b.extents[0] = 11: must be R = 12"},
          {"columns of out", [](auto& p) { p.out.extents[2] = 6; }, "out.extents[2] = 6: must be N = 7"},
          {"rows of out", [](auto& p) { p.out.extents[1] = 4; }, "out.extents[1] = 4: must be M = 5"},
          {"experts", [](auto& p) { p.out.extents[0] = 2; }, "out.extents[0] = 2: must be E = 3"},
          {"rank of out", [](auto& p) { p.out.rank = 2; }, "out.rank = 2"},
          {"last stride of a",
           [](auto& p) {
             p.a.strides = {1, 12};
           },
           "the last stride must be 1"},
          {"dtype of segments", [](auto& p) { p.expert_end.dtype = dtype::i64; },
           "expert_end.dtype = i64: must be i32"},
          {"tf32_rounding", [](auto& p) { p.tf32_rounding = "up"; }, "tf32_rounding = 'up'"},
          {"out overlaps itself", [](auto& p) { p.out.strides[0] = 7; }, "must not overlap itself"},
      });
}

TEST_CASE("gemm.grouped_tn sums each expert's rows and reads no others") {
  const dtype type = GENERATE(dtype::bf16, dtype::f32);
  const bool accumulate = GENERATE(false, true);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  memory m;
  exact_case c = make_exact(m, type, 40, 9, 70, {20, 0, 3, 7}, {37, 1, 3, 19}, {17, 1, 0, 5});
  c.p.accumulate = accumulate;
  std::vector<int> owner(40, -1);
  std::fill(owner.begin() + 20, owner.begin() + 37, 0);
  owner[0] = 1;
  std::fill(owner.begin() + 7, owner.begin() + 12, 3);
  for (std::int64_t r = 0; r < 40; ++r)
    if (owner[static_cast<std::size_t>(r)] < 0)
      for (std::int64_t i = 0; i < 9; ++i) put_code(c.p.a, r * c.p.a.stride(0), i, nan);
  for (std::int64_t i = 0; i < 4 * 9 * 72 - 2; ++i)
    static_cast<float*>(c.p.out.data)[i] = accumulate ? 5 : nan;
  queue q{cpu_selector, queue_properties{.checked = true}};
  run(q, c.p);
  q.wait();
  expect_sums(c, owner, accumulate ? 5 : 0);
  const float gap = static_cast<float*>(c.p.out.data)[70];
  CHECK((accumulate ? gap == 5 : std::isnan(gap)));
  CHECK(m.guards_intact());
}

TEST_CASE("gemm.grouped_tn is the adjoint of gemm.grouped_nt in b") {
  // <a b^T, g> = <b, g^T a> for whole numbers, per expert.
  memory m;
  const std::vector<std::int32_t> start{0, 5}, end{5, 12};
  const exact_factor a = make_factor(m, dtype::bf16, 0, 12, 18, 1),
                     g = make_factor(m, dtype::bf16, 0, 12, 11, 2),
                     b = make_factor(m, dtype::bf16, 2, 11, 18, 3);
  gemm::grouped_nt forward;
  forward.a = a.codes;
  forward.b = b.codes;
  forward.expert_start = make_ids(m, start);
  forward.expert_end = make_ids(m, end);
  forward.out = m.make(dtype::f32, {12, 11});
  grouped_tn backward;
  backward.a = g.codes;
  backward.b = a.codes;
  backward.expert_start = forward.expert_start;
  backward.expert_end = forward.expert_end;
  backward.out = m.make(dtype::f32, {2, 11, 18});
  queue q{cpu_selector};
  run(q, forward);
  run(q, backward);
  for (std::int64_t e = 0; e < 2; ++e) {
    double left = 0, right = 0;
    for (std::int64_t r = start[static_cast<std::size_t>(e)]; r < end[static_cast<std::size_t>(e)]; ++r)
      for (std::int64_t j = 0; j < 11; ++j) left += at<float>(forward.out, r, j) * g.at(0, r, j);
    for (std::int64_t i = 0; i < 11 * 18; ++i)
      right += static_cast<float*>(backward.out.data)[e * 198 + i] * b.at(e, i / 18, i % 18);
    CHECK(left == right);
  }
}

TEST_CASE("gemm.grouped_tn reports broken segments and stays inside") {
  struct row {
    std::string text;
    std::int64_t index;
    std::vector<std::int32_t> start, end, live;
    std::vector<int> owner;
  };
  const row table[] = {
      {"expert_start <= expert_end <= rows of a", 1, {0, 4}, {4, 1 << 30}, {}, {0, 0, 0, 0, 1, 1, 1, 1}},
      {"expert_start <= expert_end <= rows of a", 0, {-2, 4}, {2, 6}, {}, {0, 0, -1, -1, 1, 1, -1, -1}},
      {"num_live_per_expert must be", 0, {0, 4}, {4, 8}, {5, 4}, {0, 0, 0, 0, 1, 1, 1, 1}},
      {"must not overlap", 1, {2, 0}, {4, 6}, {}, {1, 1, 0, 0, 1, 1, -1, -1}},
  };
  for (const row& r : table) {
    INFO(r.text << " at expert " << r.index);
    memory m;
    exact_case c = make_exact(m, dtype::bf16, 8, 3, 4, r.start, r.end, r.live);
    expect_trap(c.p, r.text, r.index);
    expect_sums(c, r.owner);
    queue q{cpu_selector};
    CHECK_NOTHROW(run(q, c.p));
    expect_sums(c, r.owner);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("gemm.grouped_tn without rows or columns") {
  queue q{cpu_selector};
  memory m;
  exact_case c = make_exact(m, dtype::bf16, 0, 3, 4, {0, 0}, {0, 0});
  c.p.accumulate = true;
  run(q, c.p);
  CHECK(memory::untouched(c.p.out));
  c.p.accumulate = false;
  run(q, c.p);
  expect_sums(c, {});
  grouped_tn p = good(m);
  p.a.extents[1] = p.out.extents[1] = 0;
  CHECK_NOTHROW(run(q, p));
  CHECK(memory::untouched(p.out));
  p = good(m);
  p.out = {};
  CHECK(infer(p).at(0).extents == std::vector<std::int64_t>{3, 5, 7});
}
