#include <cmath>
#include <limits>

#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/f16.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using rope::apply;

namespace {

apply make(memory& m, std::int64_t tokens = 5, std::int64_t heads = 3, std::int64_t rot = 8,
           dtype type = dtype::f32) {
  apply p;
  p.query = m.make(type, {tokens, heads, rot});
  p.key = m.make(type, {tokens, 1, rot});
  p.cos_sin_cache = m.make(dtype::f32, {tokens + 4, rot});
  if (type == dtype::f16)
    for (const tensor& t : {p.query, p.key})
      for (std::int64_t i = 0; i < t.numel(); ++i)
        static_cast<numeric::f16*>(t.data)[i] = numeric::to_f16(0.25f * static_cast<float>(i % 9 - 4));
  else
    fill_normal(p.query, 1), fill_normal(p.key, 2);
  fill_normal(p.cos_sin_cache, 3);
  return p;
}

/// Element i of a tensor in row-major order of its indices, as fp32.
float value(const tensor& t, std::int64_t i) {
  std::int64_t at = 0;
  for (int d = t.rank; d-- > 0;) {
    at += i % t.extent(d) * t.stride(d);
    i /= t.extent(d);
  }
  switch (t.dtype) {
    case dtype::f32:
      return static_cast<const float*>(t.data)[at];
    case dtype::f16:
      return numeric::to_float(static_cast<const numeric::f16*>(t.data)[at]);
    default:
      return numeric::to_float(static_cast<const numeric::bf16*>(t.data)[at]);
  }
}

std::vector<float> values(const tensor& t) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < t.numel(); ++i) v.push_back(value(t, i));
  return v;
}

/// A cache of real angles, so that the conjugate undoes the rotation.
void set_angles(const tensor& cache) {
  const std::int64_t half = cache.extent(1) / 2;
  for (std::int64_t r = 0; r < cache.extent(0); ++r)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(r) / std::pow(10000.0, static_cast<double>(i) / static_cast<double>(half));
      at<float>(cache, r, i) = static_cast<float>(std::cos(angle));
      at<float>(cache, r, half + i) = static_cast<float>(std::sin(angle));
    }
}

}  // namespace

TEST_CASE("rope.apply refuses bad problems") {
  expect_refusals<apply>(
      [](memory& m) {
        apply p = make(m);
        p.positions = m.of<std::int32_t>({5}, std::vector<int>{0, 1, 2, 3, 4});
        return p;
      },
      {
          {"query absent", [](auto& p) { p.query = {}; }, "query = absent: is required"},
          {"cache absent", [](auto& p) { p.cos_sin_cache = {}; }, "cos_sin_cache = absent: is required"},
          {"rank", [](auto& p) { p.query.rank = 2; }, "query.rank = 2", 1},
          {"key rank",
           [](auto& p) {
             p.key.rank = 4;
             p.key.extents = {1, 5, 1, 8};
             p.key.strides = {40, 8, 8, 1};
           },
           "key.rank = 4: must be that of query, 3", 1},
          {"key dtype", [](auto& p) { p.key.dtype = dtype::bf16; },
           "key.dtype = bf16: must be f32, the dtype of query", 1},
          {"key tokens", [](auto& p) { p.key.extents[0] = 4; }, "key.extents[0] = 4: must be num_tokens = 5",
           1},
          {"key columns", [](auto& p) { p.key.extents[2] = 6; }, "key.extents[2] = 6: must be head_dim = 8",
           1},
          {"query dtype", [](auto& p) { p.query.dtype = dtype::i32; }, "query.dtype = i32"},
          {"query stride",
           [](auto& p) {
             p.query.strides = {24, 1, 3};
           },
           "the last stride must be 1"},
          {"cache dtype", [](auto& p) { p.cos_sin_cache.dtype = dtype::i32; },
           "cos_sin_cache.dtype = i32: must be f32"},
          {"cache stride",
           [](auto& p) {
             p.cos_sin_cache.strides = {1, 9};
           },
           "the last stride must be 1"},
          {"odd columns", [](auto& p) { p.cos_sin_cache.extents[1] = 7; },
           "rot_dim = 7: must be a multiple of 2", 2},
          {"more columns than the head",
           [](auto& p) {
             p.cos_sin_cache.extents[0] = 2;
             p.cos_sin_cache.extents[1] = p.cos_sin_cache.strides[0] = 16;
           },
           "rot_offset = 0: the rotated columns must lie in a head: 0 to head_dim - rot_dim = -8", 2},
          {"offset past the head", [](auto& p) { p.rot_offset = 1; },
           "rot_offset = 1: the rotated columns must lie in a head", 2},
          {"negative offset", [](auto& p) { p.rot_offset = -1; }, "rot_offset = -1", 2},
          {"positions dtype", [](auto& p) { p.positions.dtype = dtype::f32; },
           "positions.dtype = f32: must be i32 or i64"},
          {"positions length", [](auto& p) { p.positions.extents[0] = 4; },
           "positions.extents[0] = 4: must be num_tokens = 5", 1},
          {"positions rank",
           [](auto& p) {
             p.positions.rank = 2;
             p.positions.extents = {1, 5};
             p.positions.strides = {5, 1};
           },
           "positions.rank = 2: must be 1 with a query of rank 3", 1},
          {"positions stride", [](auto& p) { p.positions.strides[0] = 2; }, "the last stride must be 1"},
          {"seqlen_offset", [](auto& p) { p.seqlen_offset = std::int64_t{1} << 31; }, "must fit an int32", 3},
          {"negative seqlen_offset", [](auto& p) { p.seqlen_offset = -(std::int64_t{1} << 31) - 1; },
           "must fit an int32", 3},
          {"query overlaps itself",
           [](auto& p) {
             p.query.strides = {0, 8, 1};
           },
           "must not overlap itself"},
      });
}

TEST_CASE("rope.apply rotates the pairs of both layouts in the stated arithmetic") {
  memory m;
  queue q{cpu_selector};
  for (bool interleaved : {false, true})
    for (bool conjugate : {false, true}) {
      apply p = make(m);
      p.interleaved = interleaved;
      p.conjugate = conjugate;
      p.seqlen_offset = 2;
      const std::vector<float> before = values(p.query), key = values(p.key);
      run(q, p);
      for (std::int64_t t = 0; t < 5; ++t)
        for (std::int64_t h = 0; h < 3; ++h)
          for (std::int64_t i = 0; i < 4; ++i) {
            const std::int64_t ia = interleaved ? 2 * i : i, ib = interleaved ? 2 * i + 1 : 4 + i,
                               head = (t * 3 + h) * 8;
            const float a = before[static_cast<std::size_t>(head + ia)],
                        b = before[static_cast<std::size_t>(head + ib)];
            const float c = at<float>(p.cos_sin_cache, t + 2, i),
                        s = at<float>(p.cos_sin_cache, t + 2, 4 + i);
            CHECK(value(p.query, head + ia) ==
                  (conjugate ? std::fmaf(a, c, b * s) : std::fmaf(a, c, -(b * s))));
            CHECK(value(p.query, head + ib) ==
                  (conjugate ? std::fmaf(a, -s, b * c) : std::fmaf(a, s, b * c)));
          }
      CHECK(values(p.key) != key);
    }
  CHECK(m.guards_intact());
}

TEST_CASE("rope.apply: the conjugate undoes the rotation, for every dtype and even rot_dim") {
  memory m;
  queue q{cpu_selector};
  for (dtype type : {dtype::f32, dtype::bf16, dtype::f16})
    for (std::int64_t rot : {2, 6, 64, 256}) {
      apply p = make(m, 5, 2, rot, type);
      p.interleaved = rot == 6;
      set_angles(p.cos_sin_cache);
      const std::vector<float> before = values(p.query);
      run(q, p);
      CHECK(values(p.query) != before);
      p.conjugate = true;
      run(q, p);
      const float bound = type == dtype::f32 ? 1e-6f : type == dtype::f16 ? 4e-3f : 3e-2f;
      const std::vector<float> after = values(p.query);
      for (std::size_t i = 0; i < before.size(); ++i)
        CHECK(std::abs(after[i] - before[i]) <= bound * (1 + std::abs(before[i])));
    }
}

TEST_CASE("rope.apply changes only the rotated columns; a view of them gives the same") {
  memory m;
  queue q{cpu_selector};
  apply whole = make(m, 4, 3, 20);
  whole.key = {};
  whole.cos_sin_cache = m.make(dtype::f32, {4, 8}, {11, 1});
  for (std::int64_t r = 0; r < 4; ++r)
    for (std::int64_t i = 0; i < 8; ++i) at<float>(whole.cos_sin_cache, r, i) = static_cast<float>(r - i);
  whole.rot_offset = 12;
  apply view = whole;
  view.query = m.make(dtype::f32, {4, 3, 20});
  std::memcpy(view.query.data, whole.query.data, 4 * 3 * 20 * 4);
  const tensor buffer = view.query;
  const std::vector<float> before = values(buffer);
  view.query.data = static_cast<float*>(buffer.data) + 12;
  view.query.extents[2] = 8;
  view.rot_offset = 0;
  run(q, whole);
  run(q, view);
  CHECK(values(whole.query) == values(buffer));
  for (std::size_t i = 0; i < before.size(); ++i)
    if (i % 20 < 12) CHECK(values(buffer)[i] == before[i]);
  // The first columns of a wider head.
  apply front = make(m, 4, 3, 20);
  front.cos_sin_cache = whole.cos_sin_cache;
  const std::vector<float> head = values(front.query);
  run(q, front);
  for (std::size_t i = 0; i < head.size(); ++i)
    if (i % 20 >= 8) CHECK(values(front.query)[i] == head[i]);
  CHECK(m.guards_intact());
}

TEST_CASE("rope.apply: batches, broadcast positions of both types, strides of any size") {
  memory m;
  queue q{cpu_selector};
  apply p;
  p.query = m.make(dtype::f32, {3, 2, 1, 4}, {11, 5, 4, 1});  // a batch stride that is no multiple of 8
  p.cos_sin_cache = m.make(dtype::f32, {9, 4});
  fill_normal(p.cos_sin_cache, 3);
  for (std::int64_t i = 0; i < 33; ++i)
    static_cast<float*>(p.query.data)[i < 31 ? i : 0] = static_cast<float>(i % 7);
  apply wide = p, none = p;
  wide.query = m.make(dtype::f32, {3, 2, 1, 4});
  none.query = m.make(dtype::f32, {3, 2, 1, 4});
  for (std::int64_t i = 0; i < 24; ++i)
    static_cast<float*>(wide.query.data)[i] = static_cast<float*>(none.query.data)[i] = value(p.query, i);
  p.positions = m.of<std::int64_t>({1, 2}, std::vector<int>{3, 4});
  p.positions.extents[0] = 3;
  p.positions.strides[0] = 0;
  wide.positions = m.of<std::int32_t>({3, 2}, std::vector<int>{3, 4, 3, 4, 3, 4});
  none.seqlen_offset = 3;
  run(q, p);
  run(q, wide);
  run(q, none);
  CHECK(values(p.query) == values(wide.query));
  CHECK(values(p.query) == values(none.query));
  CHECK(m.guards_intact());
}

TEST_CASE("rope.apply traps on positions outside the cache and leaves those tokens alone") {
  memory m;
  apply p = make(m);
  p.positions = m.of<std::int64_t>({5}, std::vector<std::int64_t>{3, -1, 9, std::int64_t{1} << 32,
                                                                  std::numeric_limits<std::int64_t>::max()});
  p.seqlen_offset = 1;
  const std::vector<float> before = values(p.query);
  expect_trap(p, "must be a row of cos_sin_cache", 2);  // -1 + 1 is row 0; 9 + 1 is past the nine rows
  const std::vector<float> after = values(p.query);
  for (std::size_t i = 0; i < before.size(); ++i) CHECK((after[i] == before[i]) == (i / 24 >= 2));
  p.seqlen_offset = -4;
  at<std::int64_t>(p.positions, 0) = std::numeric_limits<std::int64_t>::min();
  queue unchecked{cpu_selector};
  CHECK_NOTHROW(run(unchecked, p));
  CHECK(m.guards_intact());
}

TEST_CASE("rope.apply: no tokens, no heads, an empty cache") {
  memory m;
  queue q{cpu_selector};
  CHECK_NOTHROW(run(q, make(m, 0)));
  CHECK_NOTHROW(run(q, make(m, 4, 0)));
  apply p = make(m);
  p.cos_sin_cache.extents[0] = 0;
  expect_trap(p, "must be a row of cos_sin_cache", 0);
}
