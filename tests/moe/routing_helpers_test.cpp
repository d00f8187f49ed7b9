// The small integer operations on expert and group ids.
#include <limits>

#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::aux_fi;
using moe::group_count;
using moe::inplace_unique_group_indices;
using moe::mask_indices_by_tp;

namespace {

using longs = std::vector<std::int64_t>;

tensor ids(memory& m, std::int64_t rows, const longs& v) {
  return m.of<std::int64_t>({rows, static_cast<std::int64_t>(v.size()) / rows}, v);
}
template <class T>
std::vector<T> values(const tensor& t) {
  const auto* p = static_cast<const T*>(t.data);
  return {p, p + t.numel()};
}

group_count counting(memory& m) {
  group_count p;
  p.group_idx = ids(m, 3, {0, 3, -1, 3, 3, 1});
  p.out = m.make(dtype::i32, {4});
  p.num_groups = 4;
  return p;
}
aux_fi share(memory& m) {
  aux_fi p;
  p.topk_idx = ids(m, 3, {0, 3, -1, 3, 3, 1});
  p.out = m.make(dtype::f32, {4});
  p.num_experts = 4;
  p.num_aux_topk = 2;
  return p;
}
inplace_unique_group_indices unique(memory& m) {
  inplace_unique_group_indices p;
  p.group_idx = ids(m, 2, {5, 0, 5, -1, 0, -1, 2, 2, 1, 2});
  p.num_groups = 6;
  return p;
}
mask_indices_by_tp masking(memory& m) {
  mask_indices_by_tp p;
  p.indices = ids(m, 2, {0, 1, 2, 3, 4, 7, -1, -9});
  p.out = m.make(dtype::i64, {2, 4});
  p.num_experts = 8;
  p.num_ep_ranks = 4;
  p.num_tp_ranks = 2;
  p.tp_rank = 1;
  return p;
}

}  // namespace

TEST_CASE("moe.group_count refuses bad problems") {
  expect_refusals<group_count>(
      counting,
      {
          {"absent", [](auto& p) { p.group_idx = {}; }, "group_idx = absent: is required"},
          {"dtype", [](auto& p) { p.group_idx.dtype = dtype::f64; }, "group_idx.dtype = f64: must be i64"},
          {"rank", [](auto& p) { p.group_idx.rank = 1; }, "group_idx.rank = 1"},
          {"contiguous", [](auto& p) { p.group_idx.strides[0] = 3; }, "must be contiguous", 1},
          {"groups", [](auto& p) { p.num_groups = 5; }, "out.extents[0] = 4: must be num_groups = 5"},
          {"int32 counts",
           [](auto& p) {
             p.group_idx.extents = {std::int64_t{1} << 30, 2};
           },
           "num_tokens * num_topk = 2147483648: must be below 2^31", 2},
      });
}

TEST_CASE("moe.group_count counts, duplicates too, and traps on groups out of range") {
  memory m;
  queue q{cpu_selector};
  group_count p = counting(m);
  run(q, p);
  CHECK(values<int>(p.out) == std::vector<int>{1, 1, 0, 3});
  at<std::int64_t>(p.group_idx, 0, 1) = 4;
  at<std::int64_t>(p.group_idx, 1, 0) = -2;
  expect_trap(p, "group_idx must be -1 or a group below num_groups", 1);
  at<std::int64_t>(p.group_idx, 0, 1) = std::numeric_limits<std::int64_t>::max();
  run(q, p);
  CHECK(values<int>(p.out) == std::vector<int>{1, 1, 0, 2});
  p.group_idx.extents[0] = 0;
  run(q, p);
  CHECK(values<int>(p.out) == std::vector<int>{0, 0, 0, 0});
  CHECK(m.guards_intact());
}

TEST_CASE("moe.aux_fi refuses bad problems") {
  expect_refusals<aux_fi>(
      share,
      {
          {"absent", [](auto& p) { p.topk_idx = {}; }, "topk_idx = absent: is required"},
          {"contiguous", [](auto& p) { p.topk_idx.strides[0] = 3; }, "must be contiguous", 1},
          {"dtype", [](auto& p) { p.topk_idx.dtype = dtype::f64; }, "topk_idx.dtype = f64: must be i64"},
          {"aux slots", [](auto& p) { p.num_aux_topk = 0; }, "num_aux_topk = 0: must be at least 1", 2},
          {"experts", [](auto& p) { p.num_experts = 3; }, "out.extents[0] = 4: must be num_experts = 3"},
      });
}

TEST_CASE("moe.aux_fi divides once, counts every token, gives zero without tokens") {
  memory m;
  queue q{cpu_selector};
  aux_fi p = share(m);
  run(q, p);
  CHECK(values<float>(p.out) == std::vector<float>{4.0f / 6, 4.0f / 6, 0, 12.0f / 6});
  at<std::int64_t>(p.topk_idx, 2, 1) = 4;
  expect_trap(p, "topk_idx must be -1 or an expert id below num_experts", 5);
  run(q, p);
  CHECK(values<float>(p.out) == std::vector<float>{4.0f / 6, 0, 0, 12.0f / 6});
  p.topk_idx.extents[0] = 0;
  run(q, p);
  CHECK(values<float>(p.out) == std::vector<float>{0, 0, 0, 0});
}

TEST_CASE("moe.aux_fi: products beyond int32") {
  memory m;
  queue q{cpu_selector};
  aux_fi p;
  const std::int64_t tokens = 1 << 20, experts = 4096;
  p.topk_idx = m.of<std::int64_t>({tokens, 1}, longs(static_cast<std::size_t>(tokens), 1));
  p.topk_idx.extents[0] = tokens;
  p.out = m.make(dtype::f32, {4});
  p.num_experts = 4;
  p.num_aux_topk = experts;
  run(q, p);
  CHECK(at<float>(p.out, 1) == 4.0f / 4096);
}

TEST_CASE("moe.inplace_unique_group_indices refuses bad problems") {
  expect_refusals<inplace_unique_group_indices>(
      unique,
      {
          {"absent", [](auto& p) { p.group_idx = {}; }, "group_idx = absent: is required"},
          {"rank", [](auto& p) { p.group_idx.rank = 1; }, "group_idx.rank = 1"},
          {"contiguous", [](auto& p) { p.group_idx.strides[0] = 7; }, "must be contiguous", 1},
          {"dtype", [](auto& p) { p.group_idx.dtype = dtype::f64; }, "group_idx.dtype = f64: must be i64"},
          {"groups", [](auto& p) { p.num_groups = 0; }, "num_groups = 0: must be at least 1", 2},
      });
}

TEST_CASE("moe.inplace_unique_group_indices keeps first occurrences, and a second run changes nothing") {
  memory m;
  queue q{cpu_selector};
  inplace_unique_group_indices p = unique(m);
  const longs want{5, 0, -1, -1, -1, -1, 2, -1, 1, -1};
  run(q, p);
  CHECK(values<std::int64_t>(p.group_idx) == want);
  run(q, p);
  CHECK(values<std::int64_t>(p.group_idx) == want);
  // More groups than the peer's 128-bit set.
  p.group_idx = ids(m, 1, {1000, 999, 1000, 40, 999});
  p.num_groups = 1001;
  run(q, p);
  CHECK(values<std::int64_t>(p.group_idx) == longs{1000, 999, -1, 40, -1});
  p.group_idx.extents[0] = 0;
  CHECK_NOTHROW(run(q, p));
}

TEST_CASE("moe.inplace_unique_group_indices traps on groups out of range") {
  memory m;
  inplace_unique_group_indices p = unique(m);
  at<std::int64_t>(p.group_idx, 0, 3) = 6;
  at<std::int64_t>(p.group_idx, 1, 0) = -7;
  expect_trap(p, "group_idx must be -1 or a group below num_groups", 3);
  CHECK(at<std::int64_t>(p.group_idx, 0, 3) == -1);
  CHECK(at<std::int64_t>(p.group_idx, 1, 0) == -7);
}

TEST_CASE("moe.mask_indices_by_tp refuses bad problems") {
  expect_refusals<mask_indices_by_tp>(
      masking,
      {
          {"absent", [](auto& p) { p.indices = {}; }, "indices = absent: is required"},
          {"dtype", [](auto& p) { p.indices.dtype = dtype::f64; }, "indices.dtype = f64: must be i64 or i32"},
          {"dtype of out", [](auto& p) { p.out.dtype = dtype::i32; },
           "out.dtype = i32: must be i64, the dtype of indices"},
          {"no experts per rank", [](auto& p) { p.num_ep_ranks = 9; },
           "num_experts = 8: must be at least num_ep_ranks = 9", 1},
          {"ep ranks", [](auto& p) { p.num_ep_ranks = 0; }, "num_ep_ranks = 0: must be at least 1", 1},
          {"tp ranks", [](auto& p) { p.num_tp_ranks = 0; }, "num_tp_ranks = 0: must be at least 1", 2},
          {"tp rank", [](auto& p) { p.tp_rank = 2; }, "tp_rank = 2: must be 0 to num_tp_ranks - 1", 2},
          {"negative tp rank", [](auto& p) { p.tp_rank = -1; }, "tp_rank = -1: must be 0 to", 2},
      });
}

TEST_CASE("moe.mask_indices_by_tp: each id belongs to one tensor-parallel rank") {
  memory m;
  queue q{cpu_selector};
  mask_indices_by_tp p = masking(m);
  run(q, p);
  CHECK(values<std::int64_t>(p.out) == longs{-1, -1, 0, 1, -1, 3, -1, -1});
  p.tp_rank = 0;
  run(q, p);
  CHECK(values<std::int64_t>(p.out) == longs{0, 1, -1, -1, 2, -1, -1, -1});
  // In place, int32, strided.
  mask_indices_by_tp s = p;
  s.indices = m.make(dtype::i32, {2, 2}, {3, 1});
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) at<int>(s.indices, i, j) = 2 * i + j;
  s.out = s.indices;
  run(q, s);
  CHECK(at<int>(s.out, 0, 1) == 1);
  CHECK(at<int>(s.out, 1, 0) == -1);
  s.num_tp_ranks = 1;
  s.indices = s.out = m.make(dtype::i32, {0, 2});
  CHECK_NOTHROW(run(q, s));
  CHECK(m.guards_intact());
}
