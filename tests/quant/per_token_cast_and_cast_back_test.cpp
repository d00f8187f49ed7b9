#include "quant/support.hpp"

using namespace portile;
using namespace portile::test;
using quant::cast_back, quant::per_token_cast, quant::per_token_cast_and_cast_back;

namespace {

per_token_cast_and_cast_back good(memory& m) {
  per_token_cast_and_cast_back p;
  p.x = m.make(dtype::bf16, {5, 192}, {200, 1});
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 192; ++j)
      at<numeric::bf16>(p.x, i, j) =
          numeric::to_bf16(static_cast<float>((i * 191 + j * 37) % 201 - 100) * 0.013f);
  p.num_per_channels = 32;
  return p;
}

}  // namespace

TEST_CASE("quant.per_token_cast_and_cast_back refuses bad problems") {
  expect_refusals<per_token_cast_and_cast_back>(
      good,
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be bf16 or f32"},
          {"stride of x",
           [](auto& p) {
             p.x.strides = {1, 5};
           },
           "the last stride must be 1"},
          {"hidden_size", [](auto& p) { p.x.extents[1] = 160; },
           "hidden_size = 160: must be a multiple of 64", 1},
          {"partial group", [](auto& p) { p.num_per_channels = 128; },
           "hidden_size = 192: must be a multiple of 128", 1},
          {"num_per_channels", [](auto& p) { p.num_per_channels = 192; },
           "num_per_channels = 192: must be one of 16, 32, 64, 128", 2},
          {"e4m3 and rounded", [](auto& p) { p.use_e4m3_sf = p.round_sf = true; }, "excludes round_sf", 3},
          {"fmt", [](auto& p) { p.fmt = "e5m6"; }, "fmt = 'e5m6'"},
          {"x overlaps itself",
           [](auto& p) {
             p.x.strides = {0, 1};
           },
           "must not overlap itself"},
      });
}

TEST_CASE("quant.per_token_cast_and_cast_back is the cast and the cast back") {
  memory m;
  for (const char* fmt : {"e4m3", "e2m1"})
    for (const int flags : {0, 1, 2}) {
      per_token_cast_and_cast_back p = good(m);
      p.fmt = fmt;
      p.round_sf = flags == 1;
      p.use_e4m3_sf = flags == 2;
      per_token_cast c;
      c.x = good(m).x;
      c.out = m.make(p.fmt == "e4m3" ? dtype::e4m3 : dtype::e2m1x2, {5, p.fmt == "e4m3" ? 192 : 96});
      c.out_sf = m.make(flags == 2 ? dtype::e4m3 : dtype::f32, {5, 6});
      c.num_per_channels = 32;
      c.round_sf = p.round_sf;
      c.use_e4m3_sf = p.use_e4m3_sf;
      run_on_host(c);
      cast_back b{
          .x = c.out, .x_sf = c.out_sf, .out = m.make(dtype::bf16, {5, 192}), .fmt = {}, .x_block_cols = 32};
      run_on_host(b);
      run_on_host(p);
      CHECK(same_bytes(p.x, b.out));
      CHECK(!same_bytes(p.x, c.x));
      CHECK(at<std::uint16_t>(p.x, 0, 195) == 0xA5A5);
    }
  per_token_cast_and_cast_back none = good(m);
  none.x = without_rows(none.x);
  CHECK_NOTHROW(run_on_host(none));
  CHECK(m.guards_intact());
}
