#include <cmath>

#include "quant/support.hpp"

using namespace portile;
using namespace portile::test;
using quant::cast, quant::formats;

namespace {

cast good(memory& m) {
  cast p;
  p.x = m.make(dtype::f32, {6, 10});
  p.out = m.make(dtype::e4m3, {6, 10});
  fill_normal(p.x, 1);
  return p;
}
formats encode(memory& m) {
  formats p;
  p.x = m.make(dtype::f32, {2, 8});
  p.out = m.make(dtype::e4m3, {2, 8});
  fill_normal(p.x, 1);
  return p;
}

}  // namespace

TEST_CASE("quant.cast and quant.formats refuse bad problems") {
  expect_refusals<cast>(
      good,
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::i32; }, "x.dtype = i32: must be f32, bf16 or e4m3"},
          {"dtype of out", [](auto& p) { p.out.dtype = dtype::e2m1x2; },
           "out.dtype = e2m1x2: must be bf16, e4m3 or f32"},
          {"strided x", [](auto& p) { p.x.extents[1] = p.out.extents[1] = 9; }, "must be contiguous", 1},
          {"misaligned", [](auto& p) { p.x.data = static_cast<char*>(p.x.data) + 2; }, "misaligned"},
          {"rank",
           [](auto& p) {
             p.out.rank = 1;
             p.out.extents[0] = 60;
             p.out.strides[0] = 1;
           },
           "out.rank = 1: must be that of x, 2"},
          {"shape", [](auto& p) { p.out.extents[0] = 5; }, "out.extents[0] = 5: must be num_rows = 6"},
          {"fmt against out", [](auto& p) { p.fmt = "bf16"; }, "must be empty or 'e4m3'"},
          {"stochastic from e4m3",
           [](auto& p) {
             p.stochastic_rounding = true;
             p.x.dtype = dtype::e4m3;
           },
           "must be wider than out", 2},
          {"stochastic to f32",
           [](auto& p) {
             p.stochastic_rounding = true;
             p.out.dtype = dtype::f32;
           },
           "must be bf16 or e4m3", 2},
          {"stochastic from bf16 to bf16",
           [](auto& p) {
             p.stochastic_rounding = true;
             p.x.dtype = p.out.dtype = dtype::bf16;
           },
           "must be wider than out", 2},
          {"stochastic, no quads",
           [](auto& p) {
             p.stochastic_rounding = true;
             p.x.extents[0] = p.out.extents[0] = 5;
           },
           "x.numel = 50: must be a multiple of 4", 2},
      });
  expect_refusals<formats>(
      encode,
      {
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::bf16; }, "x.dtype = bf16: must be f32"},
          {"dtype of out",
           [](auto& p) {
             p.out.dtype = dtype::e2m1x2;
             p.out.extents[1] = 4;
             p.out.strides[0] = 4;
           },
           "out.dtype = e2m1x2: must be e4m3 for fmt 'e4m3'"},
          {"decoding into codes", [](auto& p) { p.direction = "decode"; }, "out.dtype = e4m3: must be f32"},
          {"strided", [](auto& p) { p.x.strides[0] = 9; }, "must be contiguous", 1},
          {"strided codes", [](auto& p) { p.out.strides[0] = 9; }, "out = ", 1},
          {"half an element",
           [](auto& p) {
             p.fmt = "e2m1";
             p.x.extents[1] = p.x.strides[0] = 7;
             p.out.dtype = dtype::e2m1x2;
             p.out.extents[1] = p.out.strides[0] = 4;
           },
           "7", 1},
          {"fmt", [](auto& p) { p.fmt = "fp32"; }, "fmt = 'fp32'"},
          {"direction", [](auto& p) { p.direction = "both"; }, "direction = 'both'"},
          {"shape",
           [](auto& p) {
             p.out.extents[1] = 7;
             p.out.strides[0] = 7;
           },
           "out.extents[1] = 7"},
          {"leading shape", [](auto& p) { p.out.extents[0] = 1; }, "out.extents[0] = 1: must fit x: 2"},
      });
}

TEST_CASE("quant.cast: any shape, none, exact widening") {
  memory m;
  cast p;
  p.x = m.make(dtype::bf16, {2, 3, 2, 1, 2});
  fill_normal(p.x, 3);
  p.out = m.make(dtype::f32, {2, 3, 2, 1, 2});
  run_on_host(p);
  for (int k = 0; k < 24; ++k)
    CHECK(static_cast<float*>(p.out.data)[k] == numeric::to_float(static_cast<numeric::bf16*>(p.x.data)[k]));
  cast back = p;
  back.x = p.out;
  back.out = m.make(dtype::bf16, {2, 3, 2, 1, 2});
  run_on_host(back);
  CHECK(same_bytes(back.out, p.x));
  cast one;
  one.x = m.make(dtype::f32, std::span<const std::int64_t>{}, std::span<const std::int64_t>{});
  *static_cast<float*>(one.x.data) = -500.0f;
  one.out = m.make(dtype::e4m3, std::span<const std::int64_t>{}, std::span<const std::int64_t>{});
  run_on_host(one);
  CHECK(*static_cast<unsigned char*>(one.out.data) == 0xFE);
  cast none = good(m);
  none.x = without_rows(none.x);
  none.out = without_rows(none.out);
  none.stochastic_rounding = true;
  CHECK_NOTHROW(run_on_host(none));
  CHECK(m.guards_intact());
}

TEST_CASE("quant.cast: stochastic rounding takes a neighbour, without bias, and repeats") {
  memory m;
  const std::int64_t n = 40000;
  cast p;
  p.x = m.make(dtype::f32, {n});
  for (std::int64_t i = 0; i < n; ++i)
    at<float>(p.x, i) =
        1.0f + 0.125f * static_cast<float>(i % 997) / 997.0f;  // between 1 and 1.125, neighbours in e4m3
  p.stochastic_rounding = true;
  for (const dtype type : {dtype::e4m3, dtype::bf16}) {
    p.out = m.make(type, {n});
    run_on_host(p);
    double error = 0;
    const float step = type == dtype::e4m3 ? 0x1p-3f : 0x1p-7f;
    std::int64_t ups = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = at<float>(p.x, i), y = type == dtype::e4m3
                                                 ? numeric::to_float(at<numeric::e4m3>(p.out, i))
                                                 : numeric::to_float(at<numeric::bf16>(p.out, i));
      REQUIRE(std::fabs(y - x) < step);
      if (x == std::floor(x / step) * step) REQUIRE(y == x);
      error += (y - x) / step;
      ups += y > x;
    }
    // Each error has a variance of at most 1/4: five standard deviations.
    CHECK(std::fabs(error) < 5 * std::sqrt(0.25 * static_cast<double>(n)));
    CHECK((ups > n / 3 && ups < 2 * n / 3));
    const tensor first = p.out;
    p.out = m.make(type, {n});
    run_on_host(p);
    CHECK(same_bytes(first, p.out));
  }
  CHECK(m.guards_intact());
}

TEST_CASE("quant.formats: every code survives decoding and encoding") {
  memory m;
  struct format {
    const char* fmt;
    dtype type;
    std::int64_t codes, stored;
  };
  for (const format& f : {format{"e4m3", dtype::e4m3, 256, 256}, format{"e2m1", dtype::e2m1x2, 512, 256},
                          format{"e5m6", dtype::e5m6x8, 4096, 6144},
                          format{"bf16", dtype::bf16, 65536, 65536}, format{"ue8m0", dtype::u8, 256, 256}}) {
    formats d;
    d.direction = "decode";
    d.fmt = f.fmt;
    d.x = m.make(f.type, {f.stored});
    if (f.type == dtype::e5m6x8) {
      for (std::int64_t g = 0; g < 512; ++g) {
        std::uint16_t codes[8];
        for (int k = 0; k < 8; ++k) codes[k] = static_cast<std::uint16_t>(8 * g + k);
        numeric::pack_e5m6x8(codes, static_cast<std::uint8_t*>(d.x.data) + 12 * g);
      }
    } else {
      for (std::int64_t k = 0; k < f.stored; ++k) {
        if (f.type == dtype::bf16)
          at<std::uint16_t>(d.x, k) = static_cast<std::uint16_t>(k);
        else
          at<std::uint8_t>(d.x, k) = static_cast<std::uint8_t>(k);
      }
    }
    d.out = m.make(dtype::f32, {f.codes});
    run_on_host(d);
    formats e;
    e.fmt = f.fmt;
    e.x = d.out;
    e.out = m.make(f.type, {f.stored});
    run_on_host(e);
    // Specials have one canonical code, and e5m6 saturates instead of Inf; the subnormals of e5m6 are exact.
    for (std::int64_t k = 0; k < f.codes; ++k) {
      const float v = at<float>(d.out, k);
      if (!numeric::is_finite(v) || (f.type == dtype::u8 && v == 0)) continue;
      if (f.type == dtype::bf16) {
        REQUIRE(at<std::uint16_t>(e.out, k) == at<std::uint16_t>(d.x, k));
      } else if (f.type == dtype::u8) {
        REQUIRE(at<std::uint8_t>(e.out, k) == k);
      } else {
        const tensor row = make_tensor(e.out.data, e.out.dtype, {1, f.stored});
        REQUIRE(numeric::float_bits(get(row, 0, k)) == numeric::float_bits(v));
      }
    }
  }
  formats p;
  p.fmt = "ue8m0";
  p.x = m.of<float>({4}, std::vector<float>{1.0f, 0x1p-126f, 3.0f, 0x1p127f});
  p.out = m.make(dtype::u8, {4});
  expect_trap(p, "power of two", 2);
  CHECK_NOTHROW(run_on_host(p));
  CHECK(at<std::uint8_t>(p.out, 0) == 127);
  CHECK(at<std::uint8_t>(p.out, 1) == 1);
  CHECK(at<std::uint8_t>(p.out, 2) == 129);
  CHECK(at<std::uint8_t>(p.out, 3) == 254);
  formats none = encode(m);
  none.x = without_rows(none.x);
  none.out = without_rows(none.out);
  CHECK_NOTHROW(run_on_host(none));
  CHECK(m.guards_intact());
}
