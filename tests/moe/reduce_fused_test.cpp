#include <cmath>
#include <limits>

#include <portile/core/numeric/bf16.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::reduce_fused;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

reduce_fused make(memory& m, dtype type = dtype::f32, dtype out = dtype::f32) {
  reduce_fused p;
  p.x = m.make(type, {6, 256});
  fill_normal(p.x, 2);
  p.x_sf = m.of<float>({6}, std::vector<float>{1, 2, -1, 0.5f, 3, 1});
  p.topk_weights = m.of<float>({3, 2}, std::vector<float>{0.25f, 0.75f, 1, -2, 0, 0});
  p.token_topk_to_pos = m.of<std::int32_t>({3, 2}, std::vector<int>{5, 0, -1, 3, -1, -1});
  p.out = m.make(out, {3, 256});
  return p;
}

}  // namespace

TEST_CASE("moe.reduce_fused refuses bad problems") {
  expect_refusals<reduce_fused>(
      [](memory& m) { return make(m); },
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"hidden", [](auto& p) { p.x.extents[1] = p.out.extents[1] = 128; },
           "hidden_size = 128: must be a multiple of 256", 1},
          {"fmt", [](auto& p) { p.fmt = "e5m2"; }, "fmt = 'e5m2'", 2},
          {"fmt against out", [](auto& p) { p.fmt = "e4m3"; }, "out.dtype = f32: must be e4m3, as fmt says",
           2},
          {"out dtype", [](auto& p) { p.out.dtype = dtype::bf16; },
           "out.dtype = bf16: must be f32, the dtype of x, or e4m3", 2},
          {"sf without e4m3",
           [](auto& p) {
             p.sf = p.x_sf;
             p.sf.extents[0] = 1;
           },
           "must be absent unless out is e4m3", 3},
          {"sf length", [](auto& p) { p.sf = p.x_sf; }, "sf.extents[0] = 6: must be 1"},
          {"x_sf length", [](auto& p) { p.x_sf.extents[0] = 5; },
           "x_sf.extents[0] = 5: must be num_rows = 6"},
          {"weights shape", [](auto& p) { p.topk_weights.extents[0] = 2; }, "num_tokens"},
          {"out shape", [](auto& p) { p.out.extents[0] = 2; }, "out.extents[0] = 2: must be num_tokens = 3"},
          {"x dtype", [](auto& p) { p.x.dtype = dtype::f16; }, "x.dtype = f16: must be bf16 or f32"},
      });
}

TEST_CASE("moe.reduce_fused sums the live slots in order") {
  memory m;
  queue q{cpu_selector};
  reduce_fused p = make(m);
  at<float>(p.x, 3, 7) = not_a_number;
  at<float>(p.x, 1, 0) = not_a_number;  // no slot names row 1
  run(q, p);
  for (int j = 0; j < 256; ++j) {
    CHECK(at<float>(p.out, 0, j) == std::fmaf(at<float>(p.x, 0, j), 0.75f, at<float>(p.x, 5, j) * 0.25f));
    if (j != 7) CHECK(at<float>(p.out, 1, j) == at<float>(p.x, 3, j) * -1.0f);
    CHECK(at<std::uint32_t>(p.out, 2, j) == 0);
  }
  CHECK(std::isnan(at<float>(p.out, 1, 7)));
  p.x_sf = p.topk_weights = {};
  run(q, p);
  for (int j = 0; j < 256; ++j) CHECK(at<float>(p.out, 0, j) == at<float>(p.x, 0, j) + at<float>(p.x, 5, j));
}

TEST_CASE("moe.reduce_fused converts to bf16 and to saturating e4m3") {
  memory m;
  queue q{cpu_selector};
  reduce_fused p = make(m, dtype::bf16, dtype::bf16);
  run(q, p);
  for (int j = 0; j < 256; ++j)
    CHECK(numeric::to_float(at<numeric::bf16>(p.out, 1, j)) ==
          -numeric::to_float(at<numeric::bf16>(p.x, 3, j)));
  reduce_fused f = make(m, dtype::f32, dtype::e4m3);
  f.topk_weights = f.x_sf = {};
  f.sf = m.of<float>({1}, std::vector<float>{2});
  const float row[] = {1, 223, 225, 1e30f, -inf, not_a_number, -0.0f};
  for (int j = 0; j < 7; ++j) at<float>(f.x, 3, j) = row[j];
  run(q, f);
  const int codes[] = {0x40, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x00};
  for (int j = 0; j < 7; ++j) CHECK((at<std::uint8_t>(f.out, 1, j) & (j == 5 ? 0x7F : 0xFF)) == codes[j]);
  f.fmt = "e4m3";
  CHECK_NOTHROW(run(q, f));
  CHECK(infer(f)[0].dtype == dtype::e4m3);
}

TEST_CASE("moe.reduce_fused traps on positions past the rows and skips them") {
  memory m;
  reduce_fused p = make(m);
  at<int>(p.token_topk_to_pos, 1, 0) = 6;
  expect_trap(p, "token_topk_to_pos must be below the number of rows", 2);
  at<int>(p.token_topk_to_pos, 1, 0) = std::numeric_limits<int>::max();
  queue unchecked{cpu_selector};
  run(unchecked, p);
  CHECK(at<float>(p.out, 1, 0) == -at<float>(p.x, 3, 0));
  CHECK(m.guards_intact());
}

TEST_CASE("moe.reduce_fused undoes moe.expand_to_fused, whatever the order of the rows") {
  memory m;
  queue q{cpu_selector};
  std::vector<int> order(33 * 3);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i * 40 % order.size());
  moe::expand_to_fused e;
  e.x = m.make(dtype::f32, {33, 256});
  fill_normal(e.x, 4);
  e.token_topk_to_pos = m.of<std::int32_t>({33, 3}, order);
  e.pos_to_expert = m.of<std::int32_t>({99}, std::vector<int>(99));
  e.out = m.make(dtype::f32, {99, 256});
  run(q, e);
  reduce_fused r;
  r.x = e.out;
  r.token_topk_to_pos = e.token_topk_to_pos;
  r.topk_weights = m.make(dtype::f32, {33, 3});
  for (int t = 0; t < 33; ++t)
    for (int j = 0; j < 3; ++j) at<float>(r.topk_weights, t, j) = j == 0 ? 0.5f : 0.25f;
  r.out = m.make(dtype::f32, {33, 256}, {300, 1});
  run(q, r);
  for (int t = 0; t < 33; ++t)
    for (int j = 0; j < 256; ++j)
      CHECK(std::abs(at<float>(r.out, t, j) - at<float>(e.x, t, j)) <=
            1e-6f * std::abs(at<float>(e.x, t, j)));
  CHECK(at<std::uint32_t>(r.out, 0, 256) == 0xA5A5A5A5u);
}

TEST_CASE("moe.reduce_fused: no tokens, no rows") {
  memory m;
  queue q{cpu_selector};
  reduce_fused p = make(m);
  p.x.extents[0] = p.x_sf.extents[0] = 0;
  for (int i = 0; i < 6; ++i) static_cast<int*>(p.token_topk_to_pos.data)[i] = -1;
  run(q, p);
  CHECK(at<std::uint32_t>(p.out, 0, 5) == 0);
  p.token_topk_to_pos.extents[0] = p.topk_weights.extents[0] = p.out.extents[0] = 0;
  CHECK_NOTHROW(run(q, p));
}
