#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using quant::per_token_cast;

namespace {

per_token_cast good(memory& m) {
  per_token_cast p;
  p.x = m.make(dtype::bf16, {5, 192});
  p.out = m.make(dtype::e4m3, {5, 192});
  p.out_sf = m.make(dtype::f32, {5, 2});
  fill_normal(p.x, 1);
  return p;
}

// Codes in place of the values; what they are is never looked at.
void quantise(per_token_cast& p) {
  p.x.dtype = dtype::e4m3;
  p.x_sf = make_tensor(p.x.data, dtype::f32, {5, 2});
  p.x_block_rows = 1;
  p.x_block_cols = 128;
}

}  // namespace

TEST_CASE("quant.per_token_cast refuses bad problems") {
  expect_refusals<per_token_cast>(
      good,
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::f16; },
           "x.dtype = f16: must be bf16, f32, e4m3 or e2m1x2"},
          {"rank of x", [](auto& p) { p.x.rank = 1; }, "x.rank = 1"},
          {"stride of x",
           [](auto& p) {
             p.x.strides = {1, 5};
           },
           "the last stride must be 1"},
          {"misaligned", [](auto& p) { p.x.data = static_cast<char*>(p.x.data) + 1; }, "misaligned"},
          {"hidden_size", [](auto& p) { p.x.extents[1] = p.out.extents[1] = 160; },
           "hidden_size = 160: must be a multiple of 64", 1},
          {"out shape", [](auto& p) { p.out.extents[0] = 4; }, "out.extents[0] = 4: must be num_tokens = 5"},
          {"num_per_channels", [](auto& p) { p.num_per_channels = 96; },
           "num_per_channels = 96: must be one of 16, 32, 64, 128", 2},
          {"one scale for a row of a quantised x",
           [](auto& p) {
             quantise(p);
             p.num_per_channels = 192;
             p.out_sf.extents[1] = 1;
           },
           "num_per_channels = 192: must be one of 16, 32, 64, 128", 2},
          {"packed without round",
           [](auto& p) {
             p.use_packed_ue8m0 = true;
             p.out_sf.dtype = dtype::ue8m0x4;
             p.out_sf.extents[1] = 1;
           },
           "needs round_sf", 4},
          {"e4m3 scales with round", [](auto& p) { p.use_e4m3_sf = p.round_sf = true; }, "excludes round_sf",
           4},
          {"dtype of out_sf", [](auto& p) { p.use_e4m3_sf = true; }, "out_sf.dtype = f32: must be e4m3"},
          {"strides of out_sf", [](auto& p) { p.use_tma_aligned_col_major_sf = true; }, "out_sf.strides"},
          {"scales of a plain x", [](auto& p) { p.x_sf = p.out_sf; }, "must be absent: x is not quantised"},
          {"quantised x without scales", [](auto& p) { p.x.dtype = dtype::e4m3; },
           "is required for a quantised x"},
          {"fmt against out", [](auto& p) { p.fmt = "e2m1"; }, "must be empty or 'e4m3'"},
          {"unknown fmt", [](auto& p) { p.fmt = "e3m4"; }, "fmt = 'e3m4'"},
          {"e5m6 in groups",
           [](auto& p) {
             p.out.dtype = dtype::e5m6x8;
             p.out.extents[1] = p.out.strides[0] = 288;
           },
           "must be hidden_size = 192: e5m6 has one scale per row", 3},
          {"e5m6 width",
           [](auto& p) {
             p.x.extents[1] = 188;
             p.out.dtype = dtype::e5m6x8;
             p.out.extents[1] = p.out.strides[0] = 282;
             p.num_per_channels = 188;
             p.out_sf.extents[1] = 1;
           },
           "hidden_size = 188", 1},
          {"e5m6 rounds to nearest",
           [](auto& p) {
             p.out.dtype = dtype::e5m6x8;
             p.out.extents[1] = p.out.strides[0] = 288;
             p.num_per_channels = 192;
             p.out_sf.extents[1] = 1;
             p.stochastic_rounding = true;
           },
           "stochastic_rounding = true: excludes e5m6", 3},
          {"e5m6 of a quantised x",
           [](auto& p) {
             quantise(p);
             p.out.dtype = dtype::e5m6x8;
             p.out.extents[1] = p.out.strides[0] = 288;
             p.num_per_channels = 192;
             p.out_sf.extents[1] = 1;
           },
           "must be absent: e5m6 takes no quantised x", 3},
          {"e5m6 with e4m3 scales",
           [](auto& p) {
             p.out.dtype = dtype::e5m6x8;
             p.out.extents[1] = p.out.strides[0] = 288;
             p.num_per_channels = 192;
             p.out_sf.extents[1] = 1;
             p.out_sf.dtype = dtype::e4m3;
             p.use_e4m3_sf = true;
           },
           "use_e4m3_sf = true: excludes e5m6", 3},
          {"out overlaps itself",
           [](auto& p) {
             p.out.strides = {0, 1};
           },
           "must not overlap itself"},
      });
}

TEST_CASE("quant.per_token_cast takes strided rows, one token and none") {
  memory m;
  per_token_cast p = good(m);
  queue q{cpu_selector};
  run(q, p);
  per_token_cast wide = p;
  wide.x = m.make(dtype::bf16, {5, 192}, {384, 1});
  wide.out = m.make(dtype::e4m3, {5, 192}, {200, 1});
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 192; ++j) at<numeric::bf16>(wide.x, i, j) = at<numeric::bf16>(p.x, i, j);
  wide.out_sf = m.make(dtype::f32, {5, 2});
  run(q, wide);
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 192; ++j)
      REQUIRE(at<numeric::e4m3>(wide.out, i, j) == at<numeric::e4m3>(p.out, i, j));
  for (std::int64_t i = 0; i < 10; ++i)
    CHECK(at<float>(wide.out_sf, i / 2, i % 2) == at<float>(p.out_sf, i / 2, i % 2));
  CHECK(at<unsigned char>(wide.out, 0, 195) == memory::poison);

  per_token_cast none = p;
  none.x.extents[0] = none.out.extents[0] = none.out_sf.extents[0] = 0;
  none.x.data = none.out.data = none.out_sf.data = nullptr;
  CHECK_NOTHROW(run(q, none));
  CHECK(m.guards_intact());
}
