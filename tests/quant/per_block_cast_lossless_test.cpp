#include "quant/support.hpp"

using namespace portile;
using namespace portile::test;
using quant::per_block_cast_lossless;

namespace {

/// 33 rows of 96 channels in blocks of 1 x 32 become blocks of 32 x 32; exponents differ by at most 10.
per_block_cast_lossless good(memory& m) {
  per_block_cast_lossless p;
  p.x = m.make(dtype::e2m1x2, {33, 48});
  for (std::int64_t k = 0; k < 33 * 48; ++k)
    static_cast<unsigned char*>(p.x.data)[k] = static_cast<unsigned char>(k * 37 + k / 7);
  p.x_sf = m.make(dtype::f32, {33, 3});
  for (std::int64_t k = 0; k < 99; ++k)
    static_cast<float*>(p.x_sf.data)[k] =
        numeric::ue8m0_to_float(static_cast<std::uint8_t>(100 + k * 5 % 11));
  p.out = m.make(dtype::e4m3, {33, 96});
  p.out_sf = m.make(dtype::f32, {2, 3});
  p.out_block_rows = p.out_block_cols = 32;
  return p;
}

}  // namespace

TEST_CASE("quant.per_block_cast_lossless refuses bad problems") {
  expect_refusals<per_block_cast_lossless>(
      good,
      {
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be e2m1x2"},
          {"scales absent", [](auto& p) { p.x_sf = {}; }, "x_sf = absent: is required"},
          {"e4m3 scales", [](auto& p) { p.x_sf.dtype = dtype::e4m3; },
           "x_sf.dtype = e4m3: must be f32 or ue8m0x4"},
          {"dtype of out", [](auto& p) { p.out.dtype = dtype::e2m1x2; }, "out.dtype = e2m1x2: must be e4m3"},
          {"hidden_size",
           [](auto& p) {
             p.x.extents[1] = 40;
             p.out.extents[1] = 80;
           },
           "hidden_size = 80: must be a multiple of 32", 1},
          {"out shape", [](auto& p) { p.out.extents[0] = 32; }, "out.extents[0] = 32"},
          {"x_block_rows", [](auto& p) { p.x_block_rows = 0; }, "x_block_rows = 0: must be positive"},
          {"x_block_cols",
           [](auto& p) {
             p.x_block_cols = 48;
             p.x_sf.extents[1] = 2;
           },
           "x_block_cols = 48: must be a power of two", 2},
          {"out_block_rows", [](auto& p) { p.out_block_rows = 0; }, "out_block_rows = 0: must be positive"},
          {"out_block_cols",
           [](auto& p) {
             p.out_block_cols = 96;
             p.out_sf.extents[1] = 1;
           },
           "out_block_cols = 96: must be a power of two", 2},
          {"rows not a multiple",
           [](auto& p) {
             p.x_block_rows = 3;
             p.x_sf.extents[0] = 11;
           },
           "out_block_rows = 32: must be a multiple of 3", 3},
          {"columns not a multiple",
           [](auto& p) {
             p.x_block_cols = 64;
             p.x_sf.extents[1] = 2;
           },
           "out_block_cols = 32: must be a multiple of 64", 3},
          {"packed without column-major",
           [](auto& p) {
             p.use_packed_ue8m0 = p.round_sf = true;
             p.out_sf.dtype = dtype::ue8m0x4;
             p.out_sf.extents[1] = 1;
           },
           "needs use_tma_aligned_col_major_sf", 4},
          {"packed without round",
           [](auto& p) {
             p.use_packed_ue8m0 = p.use_tma_aligned_col_major_sf = true;
             p.out_sf.dtype = dtype::ue8m0x4;
             p.out_sf.extents[1] = 1;
             p.out_sf.strides = {1, 4};
           },
           "needs round_sf", 4},
          {"strides of out_sf", [](auto& p) { p.use_tma_aligned_col_major_sf = true; }, "out_sf.strides"},
          {"fmt", [](auto& p) { p.fmt = "e2m1"; }, "fmt = 'e2m1'"},
          {"out overlaps itself",
           [](auto& p) {
             p.out.strides = {0, 1};
           },
           "must not overlap itself"},
      });
}

TEST_CASE("quant.per_block_cast_lossless loses nothing, in any layout") {
  memory m;
  const per_block_cast_lossless p = good(m);
  run_on_host(p);
  for (std::int64_t i = 0; i < 33; ++i)
    for (std::int64_t j = 0; j < 96; ++j) {
      const float before = get(p.x, i, j) * at<float>(p.x_sf, i, j / 32),
                  after = get(p.out, i, j) * at<float>(p.out_sf, i / 32, j / 32);
      REQUIRE(numeric::float_bits(before) == numeric::float_bits(after));
    }

  per_block_cast_lossless q = p;  // packed on both sides, strided codes
  q.x_sf = m.make(dtype::ue8m0x4, {33, 1}, {1, 36});
  for (std::int64_t i = 0; i < 33; ++i) {
    auto& w = at<numeric::ue8m0x4>(q.x_sf, i, 0);
    w.bits = 0xFF000000u;  // the unused byte is not looked at
    for (int j = 0; j < 3; ++j) w.set_byte(j, numeric::exponent_field(at<float>(p.x_sf, i, j)));
  }
  q.out = m.make(dtype::e4m3, {33, 96}, {97, 1});
  q.out_sf = m.make(dtype::ue8m0x4, {2, 1}, {1, 4});
  q.use_packed_ue8m0 = q.round_sf = q.use_tma_aligned_col_major_sf = true;
  run_on_host(q);
  CHECK(same_bytes(q.out, p.out));
  for (std::int64_t i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j)
      CHECK(at<numeric::ue8m0x4>(q.out_sf, i, 0).byte(j) ==
            numeric::exponent_field(at<float>(p.out_sf, i, j)));
    CHECK(at<numeric::ue8m0x4>(q.out_sf, i, 0).byte(3) == 0);
  }
  per_block_cast_lossless none = p;
  none.x = without_rows(p.x);
  none.x_sf = without_rows(p.x_sf);
  none.out = without_rows(p.out);
  none.out_sf = without_rows(p.out_sf);
  CHECK_NOTHROW(run_on_host(none));
  CHECK(m.guards_intact());
}

TEST_CASE("quant.per_block_cast_lossless reports scales that it cannot keep") {
  memory m;
  per_block_cast_lossless p = good(m);
  at<float>(p.x_sf, 1, 2) =
      numeric::ue8m0_to_float(98);  // the block's largest is 110: Eo = 104, and 98 + 5 < 104
  expect_trap(p, "within a factor of 2^11", 1 * 3 + 2);
  CHECK_NOTHROW(run_on_host(p));
  p = good(m);
  at<float>(p.x_sf, 32, 1) = numeric::ue8m0_to_float(6);  // alone in the output block (1, 1)
  expect_trap(p, "at least 7", 1 * 3 + 1);
  CHECK(at<float>(p.out_sf, 1, 1) == 0.0f);
  at<float>(p.x_sf, 30, 1) = 0.0f;
  at<float>(p.x_sf, 31, 1) = numeric::ue8m0_to_float(255);  // as far apart as exponents get: zeros
  CHECK_NOTHROW(run_on_host(p));
  for (std::int64_t j = 32; j < 64; ++j) CHECK((at<unsigned char>(p.out, 30, j) & 0x7F) == 0);
  CHECK(m.guards_intact());
}
