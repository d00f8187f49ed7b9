#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/e4m3.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using quant::per_block_cast;
using quant::per_token_cast;

namespace {

per_block_cast good(memory& m) {
  per_block_cast p;
  p.x = m.make(dtype::bf16, {40, 192});
  p.out = m.make(dtype::e4m3, {40, 192});
  p.out_sf = m.make(dtype::f32, {2, 6});
  p.block_rows = p.block_cols = 32;
  fill_normal(p.x, 1);
  return p;
}

}  // namespace

TEST_CASE("quant.per_block_cast refuses bad problems") {
  expect_refusals<per_block_cast>(
      good,
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be bf16 or f32"},
          {"rank of x", [](auto& p) { p.x.rank = 1; }, "x.rank = 1"},
          {"stride of x",
           [](auto& p) {
             p.x.strides = {1, 40};
           },
           "the last stride must be 1"},
          {"misaligned", [](auto& p) { p.x.data = static_cast<char*>(p.x.data) + 1; }, "misaligned"},
          {"dtype of out", [](auto& p) { p.out.dtype = dtype::e5m6x8; },
           "out.dtype = e5m6x8: must be e4m3 or e2m1x2"},
          {"out shape", [](auto& p) { p.out.extents[0] = 39; },
           "out.extents[0] = 39: must be num_tokens = 40"},
          {"out_sf shape", [](auto& p) { p.out_sf.extents[0] = 1; },
           "out_sf.extents[0] = 1: must be ceil(num_tokens, block_rows) = 2"},
          {"hidden_size",
           [](auto& p) {
             p.x.extents[1] = p.out.extents[1] = 160;
             p.out_sf.extents[1] = 5;
           },
           "hidden_size = 160: must be a multiple of 64", 1},
          {"block_rows",
           [](auto& p) {
             p.block_rows = 64;
             p.out_sf.extents[0] = 1;
           },
           "block_rows = 64: must be one of 32, 128", 2},
          {"block_cols",
           [](auto& p) {
             p.block_cols = 64;
             p.out_sf.extents[1] = 3;
           },
           "block_cols = 64: must be one of 32, 128", 2},
          {"no block", [](auto& p) { p.block_rows = 0; }, "block_rows = 0: must be one of 32, 128", 2},
          {"packed without round",
           [](auto& p) {
             p.use_packed_ue8m0 = true;
             p.out_sf.dtype = dtype::ue8m0x4;
             p.out_sf.extents[1] = 2;
           },
           "needs round_sf", 3},
          {"dtype of out_sf", [](auto& p) { p.use_packed_ue8m0 = p.round_sf = true; },
           "out_sf.dtype = f32: must be ue8m0x4"},
          {"strides of out_sf", [](auto& p) { p.use_tma_aligned_col_major_sf = true; }, "out_sf.strides"},
          {"columns of out_sf",
           [](auto& p) {
             p.use_tma_aligned_col_major_sf = true;
             p.out_sf.strides = {1, 2};
           },
           "multiple of 4 (16 bytes)"},
          {"row-major out_sf",
           [](auto& p) {
             p.out_sf.strides = {1, 2};
           },
           "must be row-major"},
          {"fmt against out", [](auto& p) { p.fmt = "e2m1"; }, "must be empty or 'e4m3'"},
          {"unknown fmt", [](auto& p) { p.fmt = "e5m6"; }, "fmt = 'e5m6'"},
          {"out overlaps itself",
           [](auto& p) {
             p.out.strides = {0, 1};
           },
           "must not overlap itself"},
      });
}

TEST_CASE("quant.per_block_cast takes strided rows, one row and none") {
  memory m;
  const per_block_cast p = good(m);
  queue q{cpu_selector};
  run(q, p);
  per_block_cast wide = p;
  wide.x = m.make(dtype::bf16, {40, 192}, {384, 1});
  wide.out = m.make(dtype::e4m3, {40, 192}, {193, 1});
  wide.out_sf = m.make(dtype::f32, {2, 6}, {7, 1});
  for (std::int64_t i = 0; i < 40; ++i)
    for (std::int64_t j = 0; j < 192; ++j) at<numeric::bf16>(wide.x, i, j) = at<numeric::bf16>(p.x, i, j);
  run(q, wide);
  for (std::int64_t i = 0; i < 40; ++i) {
    for (std::int64_t j = 0; j < 192; ++j)
      REQUIRE(at<numeric::e4m3>(wide.out, i, j) == at<numeric::e4m3>(p.out, i, j));
    if (i < 39) CHECK(at<unsigned char>(wide.out, i, 192) == memory::poison);
  }
  for (std::int64_t k = 0; k < 12; ++k)
    CHECK(at<float>(wide.out_sf, k / 6, k % 6) == at<float>(p.out_sf, k / 6, k % 6));
  CHECK(at<std::uint32_t>(wide.out_sf, 0, 6) == 0xA5A5A5A5u);

  // One row in blocks of 32 columns is the per-token cast.
  per_block_cast one = p;
  one.x.extents[0] = one.out.extents[0] = one.out_sf.extents[0] = 1;
  one.out = m.make(dtype::e4m3, {1, 192});
  one.out_sf = m.make(dtype::f32, {1, 6});
  run(q, one);
  per_token_cast token;
  token.x = one.x;
  token.out = m.make(dtype::e4m3, {1, 192});
  token.out_sf = m.make(dtype::f32, {1, 6});
  token.num_per_channels = 32;
  run(q, token);
  for (std::int64_t j = 0; j < 192; ++j)
    REQUIRE(at<numeric::e4m3>(one.out, 0, j) == at<numeric::e4m3>(token.out, 0, j));
  for (std::int64_t j = 0; j < 6; ++j) CHECK(at<float>(one.out_sf, 0, j) == at<float>(token.out_sf, 0, j));

  per_block_cast none = p;
  none.x.extents[0] = none.out.extents[0] = none.out_sf.extents[0] = 0;
  none.x.data = none.out.data = none.out_sf.data = nullptr;
  CHECK_NOTHROW(run(q, none));
  CHECK(m.guards_intact());
}

TEST_CASE("quant.per_block_cast: zeros, NaN and Inf never spoil a scale") {
  memory m;
  per_block_cast p;
  p.x = m.make(dtype::f32, {33, 64});
  p.out = m.make(dtype::e4m3, {33, 64});
  p.out_sf = m.make(dtype::f32, {2, 2});
  p.block_rows = p.block_cols = 32;
  for (std::int64_t i = 0; i < 33; ++i)
    for (std::int64_t j = 0; j < 64; ++j) at<float>(p.x, i, j) = j < 32 ? 0.0f : 1e-39f;
  at<std::uint32_t>(p.x, 32, 0) = 0x7FC00000u;  // NaN among zeros
  at<float>(p.x, 32, 40) = 448.0f;
  at<std::uint32_t>(p.x, 32, 41) = 0xFF800000u;  // -Inf
  queue q{cpu_selector};
  run(q, p);
  CHECK(at<std::uint32_t>(p.out_sf, 0, 0) == 0x346FACADu);
  CHECK(at<std::uint32_t>(p.out_sf, 0, 1) == 0x346FACADu);
  CHECK(at<std::uint32_t>(p.out_sf, 1, 0) == 0x346FACADu);
  CHECK(at<float>(p.out_sf, 1, 1) == 0x1.fffffep+127f / 448.0f);
  CHECK(at<unsigned char>(p.out, 0, 0) == 0);
  CHECK(at<unsigned char>(p.out, 5, 50) == 0);
  CHECK(at<unsigned char>(p.out, 32, 0) == 0x7F);
  CHECK(at<unsigned char>(p.out, 32, 1) == 0);
  CHECK(at<unsigned char>(p.out, 32, 40) == 0);
  CHECK(at<unsigned char>(p.out, 32, 41) == 0xFE);
}

TEST_CASE("quant.per_block_cast: scaling x by a power of two moves only the exponents") {
  memory m;
  per_block_cast p = good(m), scaled = p;
  p.round_sf = p.use_packed_ue8m0 = p.use_tma_aligned_col_major_sf = true;
  p.out = m.make(dtype::e2m1x2, {40, 96});
  p.out_sf = m.make(dtype::ue8m0x4, {2, 2}, {1, 4});
  scaled = p;
  scaled.x = m.make(dtype::f32, {40, 192});
  scaled.out = m.make(dtype::e2m1x2, {40, 96});
  scaled.out_sf = m.make(dtype::ue8m0x4, {2, 2}, {1, 8});
  for (std::int64_t k = 0; k < 40 * 192; ++k)
    static_cast<float*>(scaled.x.data)[k] =
        numeric::to_float(static_cast<numeric::bf16*>(p.x.data)[k]) * 0x1p-9f;
  queue q{cpu_selector};
  run(q, p);
  run(q, scaled);
  for (std::int64_t i = 0; i < 40; ++i)
    for (std::int64_t j = 0; j < 96; ++j)
      REQUIRE(at<numeric::e2m1x2>(p.out, i, j) == at<numeric::e2m1x2>(scaled.out, i, j));
  for (std::int64_t i = 0; i < 2; ++i)
    for (int b = 0; b < 8; ++b) {
      const int want = at<numeric::ue8m0x4>(p.out_sf, i, b / 4).byte(b % 4),
                got = at<numeric::ue8m0x4>(scaled.out_sf, i, b / 4).byte(b % 4);
      CHECK(got == (b < 6 ? want - 9 : 0));  // bytes 6 and 7 are padding and zero
      CHECK((b >= 6 || want > 0));
    }
  CHECK(m.guards_intact());
}
