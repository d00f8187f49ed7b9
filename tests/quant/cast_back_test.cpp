#include <cmath>

#include "quant/support.hpp"

using namespace portile;
using namespace portile::test;
using quant::cast_back, quant::cast_back_e5m6, quant::per_token_cast, quant::per_token_cast_back,
    quant::per_token_cast_to_e5m6;

namespace {

cast_back good(memory& m) {
  cast_back p;
  p.x = m.make(dtype::e4m3, {5, 192});
  p.x_sf = m.make(dtype::f32, {5, 2});
  p.out = m.make(dtype::bf16, {5, 192});
  fill_normal(p.x, 1);
  fill_normal(p.x_sf, 2);
  return p;
}
per_token_cast_back good_per_token(memory& m) {
  const cast_back c = good(m);
  return {.x = c.x, .x_sf = c.x_sf, .out = c.out, .fmt = {}};
}
cast_back_e5m6 good_e5m6(memory& m) {
  cast_back_e5m6 p;
  p.x = m.make(dtype::e5m6x8, {3, 60});
  p.x_sf = m.make(dtype::f32, {3, 1});
  p.out = m.make(dtype::f32, {3, 40});
  p.x_block_cols = 40;
  std::memset(p.x.data, 0x35, 180);
  fill_normal(p.x_sf, 2);
  return p;
}
per_token_cast_to_e5m6 good_to_e5m6(memory& m) {
  per_token_cast_to_e5m6 p;
  p.x = m.make(dtype::bf16, {3, 40});
  p.out = m.make(dtype::e5m6x8, {3, 60});
  p.out_sf = m.make(dtype::f32, {3, 1});
  fill_normal(p.x, 5);
  return p;
}

}  // namespace

TEST_CASE("quant.cast_back refuses bad problems") {
  expect_refusals<cast_back>(
      good,
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"scales absent", [](auto& p) { p.x_sf = {}; }, "x_sf = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::bf16; },
           "x.dtype = bf16: must be e4m3, e2m1x2 or e5m6x8"},
          {"dtype of out", [](auto& p) { p.out.dtype = dtype::f16; }, "out.dtype = f16: must be bf16 or f32"},
          {"stride of x",
           [](auto& p) {
             p.x.strides = {1, 5};
           },
           "the last stride must be 1"},
          {"misaligned", [](auto& p) { p.out.data = static_cast<char*>(p.out.data) + 1; }, "misaligned"},
          {"hidden_size", [](auto& p) { p.x.extents[1] = p.out.extents[1] = 160; },
           "hidden_size = 160: must be a multiple of 64", 1},
          {"half a group of e5m6",
           [](auto& p) {
             p.x.dtype = dtype::e5m6x8;
             p.x.extents[1] = 54;
             p.out.extents[1] = 36;
             p.x_sf.extents[1] = 1;
           },
           "hidden_size", 1},
          {"out shape", [](auto& p) { p.out.extents[0] = 4; }, "out.extents[0] = 4: must be num_tokens = 5"},
          {"scale shape", [](auto& p) { p.x_sf.extents[1] = 1; },
           "x_sf.extents[1] = 1: must be ceil(hidden_size, x_block_cols) = 2"},
          {"no rows in a block", [](auto& p) { p.x_block_rows = 0; }, "x_block_rows = 0: must be positive",
           2},
          {"no columns in a block", [](auto& p) { p.x_block_cols = 0; }, "x_block_cols = 0: must be positive",
           2},
          {"packed flag", [](auto& p) { p.use_packed_ue8m0 = true; }, "x_sf.dtype = f32: must be ue8m0x4"},
          {"packed without flag",
           [](auto& p) {
             p.x_sf.dtype = dtype::ue8m0x4;
             p.x_sf.extents[1] = 1;
           },
           "x_sf.dtype = ue8m0x4: must be f32"},
          {"column-major flag", [](auto& p) { p.use_tma_aligned_col_major_sf = true; }, "x_sf.strides"},
          {"column-major without flag",
           [](auto& p) {
             p.x_sf.strides = {1, 8};
           },
           "must be row-major"},
          {"column-major with one column",
           [](auto& p) {
             p.x_block_rows = 5;
             p.x_block_cols = 1;
             p.x_sf.extents = {1, 192};
             p.x_sf.strides = {1, 4};
             p.use_tma_aligned_col_major_sf = true;
           },
           "must be false for blocks one column wide", 3},
          {"fmt against out", [](auto& p) { p.fmt = "fp32"; }, "must be empty or 'bf16'"},
          {"unknown fmt", [](auto& p) { p.fmt = "e4m3"; }, "fmt = 'e4m3'"},
          {"out overlaps itself",
           [](auto& p) {
             p.out.strides = {0, 1};
           },
           "must not overlap itself"},
      });
  expect_refusals<per_token_cast_back>(
      good_per_token, {
                          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e5m6x8; },
                           "x.dtype = e5m6x8: must be e4m3 or e2m1x2"},
                          {"scales absent", [](auto& p) { p.x_sf = {}; }, "x_sf = absent: is required"},
                          {"hidden_size", [](auto& p) { p.x.extents[1] = p.out.extents[1] = 160; },
                           "hidden_size = 160: must be a multiple of 64", 1},
                          {"num_per_channels", [](auto& p) { p.num_per_channels = 0; },
                           "num_per_channels = 0: must be positive", 2},
                          {"scale shape", [](auto& p) { p.num_per_channels = 32; }, "x_sf.extents[1] = 2"},
                          {"fmt against out", [](auto& p) { p.fmt = "fp32"; }, "must be empty or 'bf16'"},
                      });
  expect_refusals<cast_back_e5m6>(
      good_e5m6,
      {
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be e5m6x8"},
          {"half a group",
           [](auto& p) {
             p.x.extents[1] = 54;
             p.out.extents[1] = p.x_block_cols = 36;
           },
           "hidden_size", 1},
          {"no columns in a block", [](auto& p) { p.x_block_cols = -1; },
           "x_block_cols = -1: must be positive", 2},
          {"no rows in a block", [](auto& p) { p.x_block_rows = 0; }, "x_block_rows = 0: must be positive",
           2},
          {"e4m3 scales", [](auto& p) { p.x_sf.dtype = dtype::e4m3; },
           "x_sf.dtype = e4m3: must be f32 or ue8m0x4"},
          {"fmt against out", [](auto& p) { p.fmt = "bf16"; }, "must be empty or 'fp32'"},
      });
  expect_refusals<per_token_cast_to_e5m6>(
      good_to_e5m6,
      {
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be bf16 or f32"},
          {"hidden_size",
           [](auto& p) {
             p.x.extents[1] = 36;
             p.out.extents[1] = 54;
           },
           "hidden_size", 1},
          {"num_per_channels", [](auto& p) { p.num_per_channels = 8; },
           "num_per_channels = 8: must be hidden_size = 40", 2},
          {"packed without round",
           [](auto& p) {
             p.use_packed_ue8m0 = true;
             p.out_sf.dtype = dtype::ue8m0x4;
           },
           "needs round_sf", 3},
          {"scale shape",
           [](auto& p) {
             p.out_sf.extents[1] = 2;
             p.out_sf.strides[0] = 2;
           },
           "out_sf.extents[1] = 2: must be 1"},
          {"fmt", [](auto& p) { p.fmt = "e4m3"; }, "fmt = 'e4m3'"},
          {"strides of out_sf",
           [](auto& p) {
             p.use_tma_aligned_col_major_sf = true;
             p.out_sf.strides = {3, 4};
           },
           "out_sf.strides"},
      });
}

TEST_CASE("quant: cast and back stays within half a step, in every format and layout") {
  memory m;
  for (const dtype codes : {dtype::e4m3, dtype::e2m1x2, dtype::e5m6x8})
    for (const int flags : {0, 1, 2, 3}) {
      const bool col = flags & 1, packed = flags & 2, e5m6 = codes == dtype::e5m6x8;
      const std::int64_t group = e5m6 ? 192 : 32, groups = 192 / group,
                         width = packed ? (groups + 3) / 4 : groups;
      per_token_cast p;
      p.x = m.make(dtype::f32, {7, 192});
      fill_normal(p.x, 11);
      p.out = m.make(codes, {7, stored_extent(codes, 192)});
      const dtype type = packed ? dtype::ue8m0x4 : dtype::f32;
      p.out_sf = col ? m.make(type, {7, width}, {1, 8}) : m.make(type, {7, width}, {width + 1, 1});
      p.num_per_channels = group;
      p.use_tma_aligned_col_major_sf = col;
      p.round_sf = p.use_packed_ue8m0 = packed;
      run_on_host(p);
      cast_back b;
      b.x = p.out;
      b.x_sf = p.out_sf;
      b.x_block_cols = group;
      b.use_tma_aligned_col_major_sf = col;
      b.use_packed_ue8m0 = packed;
      b.out = m.make(dtype::f32, {7, 192});
      run_on_host(b);
      // Half a step: relative to the value, or to the smallest subnormal times the scale.
      const float relative = e5m6 ? 0x1p-7f : codes == dtype::e4m3 ? 0x1p-4f : 0x1p-2f;
      const float smallest = e5m6 ? 0x1p-20f : codes == dtype::e4m3 ? 0x1p-10f : 0x1p-2f;
      const float max_q = e5m6 ? 65024.0f : codes == dtype::e4m3 ? 448.0f : 6.0f;
      bool moved = false;
      for (std::int64_t i = 0; i < 7; ++i)
        for (std::int64_t j = 0; j < 192; ++j) {
          float amax = 0;
          for (std::int64_t k = j / group * group; k < (j / group + 1) * group; ++k)
            amax = std::max(amax, std::fabs(get(p.x, i, k)));
          const float x = get(p.x, i, j), y = get(b.out, i, j), sf = amax / max_q * (packed ? 2 : 1);
          REQUIRE(std::fabs(x - y) <= std::max(relative * std::fabs(x), smallest * sf) * 1.0001f);
          moved = moved || x != y;
        }
      CHECK(moved);
      if (!e5m6) {
        per_token_cast_back t{.x = p.out,
                              .x_sf = p.out_sf,
                              .out = m.make(dtype::f32, {7, 192}),
                              .fmt = "fp32",
                              .num_per_channels = group};
        run_on_host(t);
        CHECK(same_bytes(t.out, b.out));
        continue;
      }
      cast_back_e5m6 e{
          .x = p.out, .x_sf = p.out_sf, .out = m.make(dtype::f32, {7, 192}), .fmt = {}, .x_block_cols = 192};
      run_on_host(e);
      CHECK(same_bytes(e.out, b.out));
      per_token_cast_to_e5m6 c{.x = p.x,
                               .out = m.make(codes, {7, 288}, {300, 1}),
                               .out_sf = col ? m.make(type, {7, 1}, {1, 8}) : m.make(type, {7, 1}),
                               .fmt = "e5m6"};
      c.use_tma_aligned_col_major_sf = col;
      c.round_sf = c.use_packed_ue8m0 = packed;
      run_on_host(c);
      CHECK(same_bytes(c.out, p.out));
      CHECK(same_bytes(c.out_sf, p.out_sf));
    }
  CHECK(m.guards_intact());
}

TEST_CASE("quant.cast_back: blocks of any size, one column wide packed along tokens, extremes") {
  memory m;
  cast_back p = good(m);
  p.x_block_rows = 3;
  p.x_block_cols = 7;
  p.x_sf = m.make(dtype::f32, {2, 28});
  fill_normal(p.x_sf, 9);
  at<unsigned char>(p.x, 0, 0) = 0x7F;  // NaN
  at<unsigned char>(p.x, 0, 1) = 0x80;  // -0
  at<float>(p.x_sf, 1, 0) = 3e38f;      // overflow
  at<unsigned char>(p.x, 3, 0) = 0x7E;
  run_on_host(p);
  CHECK(std::isnan(get(p.out, 0, 0)));
  CHECK(std::isinf(get(p.out, 3, 0)));
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 1; j < 192; ++j)
      REQUIRE(at<numeric::bf16>(p.out, i, j) ==
              numeric::to_bf16(get(p.x, i, j) * at<float>(p.x_sf, i / 3, j / 7)));

  cast_back c = good(m);
  c.x_block_rows = 1;
  c.x_block_cols = 1;
  c.use_packed_ue8m0 = true;
  c.x_sf = m.make(dtype::ue8m0x4, {2, 192});
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < 192; ++j)
      at<std::uint32_t>(c.x_sf, i, j) = 0x82818080u - static_cast<std::uint32_t>(j % 2);
  c.out = m.make(dtype::f32, {5, 192});
  run_on_host(c);
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 192; ++j)
      REQUIRE(get(c.out, i, j) ==
              get(c.x, i, j) * numeric::ue8m0_to_float(
                                   at<numeric::ue8m0x4>(c.x_sf, i / 4, j).byte(static_cast<int>(i % 4))));

  cast_back none = good(m);
  none.x = without_rows(none.x);
  none.x_sf = without_rows(none.x_sf);
  none.out = without_rows(none.out);
  CHECK_NOTHROW(run_on_host(none));
  CHECK(m.guards_intact());
}

TEST_CASE("quant.per_token_cast_to_e5m6: the smallest codes, zeros and no rows") {
  memory m;
  per_token_cast_to_e5m6 p;
  p.x = m.make(dtype::f32, {2, 64});
  p.out = m.make(dtype::e5m6x8, {2, 96});
  p.out_sf = m.make(dtype::f32, {2, 1});
  for (std::int64_t j = 0; j < 64; ++j) {
    at<float>(p.x, 0, j) = 0x1p-20f;
    at<float>(p.x, 1, j) = -0.0f;
  }
  at<float>(p.x, 0, 63) = 65024.0f;
  run_on_host(p);
  CHECK(at<float>(p.out_sf, 0, 0) == 1.0f);
  CHECK(get(p.out, 0, 0) == 0x1p-20f);
  CHECK(get(p.out, 0, 63) == 65024.0f);
  CHECK(at<std::uint32_t>(p.out_sf, 1, 0) == 0x30D35DD3u);
  CHECK(std::signbit(get(p.out, 1, 5)));
  p.x = without_rows(p.x);
  p.out = without_rows(p.out);
  p.out_sf = without_rows(p.out_sf);
  CHECK_NOTHROW(run_on_host(p));
  CHECK(m.guards_intact());
}
