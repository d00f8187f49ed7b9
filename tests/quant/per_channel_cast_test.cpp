#include <portile/core/numeric/scale.hpp>

#include "quant/support.hpp"

using namespace portile;
using namespace portile::test;
using quant::per_channel_cast, quant::per_channel_cast_and_transpose, quant::per_channel_cast_fused;

namespace {

per_channel_cast good(memory& m) {
  per_channel_cast p;
  p.x = m.make(dtype::bf16, {128, 64});
  p.out = m.make(dtype::e4m3, {128, 64});
  p.out_sf = m.make(dtype::f32, {4, 64});
  p.num_per_tokens = 32;
  fill_normal(p.x, 1);
  return p;
}
per_channel_cast quantised(memory& m) {
  per_channel_cast p = good(m);
  p.x = m.make(dtype::e4m3, {128, 64});
  p.x_sf = m.make(dtype::f32, {128, 2});
  p.num_per_channels = 32;
  fill_normal(p.x, 2);
  for (std::int64_t k = 0; k < 256; ++k)
    static_cast<float*>(p.x_sf.data)[k] = 0.01f * static_cast<float>(k % 9 + 1);
  return p;
}
per_channel_cast_and_transpose transposed(memory& m) {
  per_channel_cast_and_transpose p;
  p.x = m.make(dtype::bf16, {128, 64});
  p.out = m.make(dtype::e4m3, {64, 128});
  p.out_sf = m.make(dtype::f32, {4, 64});
  p.num_per_tokens = 32;
  fill_normal(p.x, 1);
  return p;
}
/// 48 rows out of 5, quantised.
per_channel_cast_fused gathered(memory& m) {
  per_channel_cast_fused p;
  p.x = m.make(dtype::e4m3, {5, 128});
  p.x_sf = m.make(dtype::f32, {5, 1});
  p.num_per_channels = 128;
  p.pos_to_token = m.make(dtype::i32, {48});
  p.out = m.make(dtype::e4m3, {48, 128});
  p.out_sf = m.make(dtype::f32, {1, 128});
  fill_normal(p.x, 3);
  for (std::int64_t i = 0; i < 5; ++i) at<float>(p.x_sf, i, 0) = 0.1f * static_cast<float>(i + 1);
  for (std::int64_t i = 0; i < 48; ++i)
    at<std::int32_t>(p.pos_to_token, i) = static_cast<std::int32_t>(i % 7 < 5 ? i % 7 : -1);
  return p;
}

}  // namespace

TEST_CASE("quant: per-channel casts refuse bad problems") {
  expect_refusals<per_channel_cast>({
      {good,
       {
           {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
           {"dtype of x", [](auto& p) { p.x.dtype = dtype::e2m1x2; },
            "x.dtype = e2m1x2: must be bf16, f32 or e4m3"},
           {"dtype of out", [](auto& p) { p.out.dtype = dtype::e2m1x2; }, "out.dtype = e2m1x2: must be e4m3"},
           {"stride of x",
            [](auto& p) {
              p.x.strides = {1, 128};
            },
            "the last stride must be 1"},
           {"num_tokens",
            [](auto& p) {
              p.x.extents[0] = p.out.extents[0] = 96;
              p.out_sf.extents[0] = 3;
            },
            "num_tokens = 96: must be a multiple of 128", 1},
           {"hidden_size", [](auto& p) { p.x.extents[1] = p.out.extents[1] = p.out_sf.extents[1] = 32; },
            "hidden_size = 32: must be a multiple of 64", 2},
           {"num_per_tokens",
            [](auto& p) {
              p.num_per_tokens = 64;
              p.out_sf.extents[0] = 2;
            },
            "num_per_tokens = 64: must be one of 32, 128", 3},
           {"scale shape", [](auto& p) { p.num_per_tokens = 128; }, "out_sf.extents[0] = 4"},
           {"scales of a plain x",
            [](auto& p) {
              p.x_sf = p.out_sf;
              p.x_sf.extents[0] = 128;
            },
            "must be absent: x is not quantised"},
           {"channels of a plain x", [](auto& p) { p.num_per_channels = 32; },
            "num_per_channels = 32: must be absent", 4},
           {"packed without round",
            [](auto& p) {
              p.use_packed_ue8m0 = true;
              p.out_sf.dtype = dtype::ue8m0x4;
              p.out_sf.extents[0] = 1;
            },
            "needs round_sf", 5},
           {"dtype of out_sf", [](auto& p) { p.use_packed_ue8m0 = p.round_sf = true; },
            "out_sf.dtype = f32: must be ue8m0x4"},
           {"fmt", [](auto& p) { p.fmt = "e2m1"; }, "fmt = 'e2m1'"},
           {"out overlaps itself",
            [](auto& p) {
              p.out.strides = {0, 1};
            },
            "must not overlap itself"},
       }},
      {quantised,
       {
           {"scales absent", [](auto& p) { p.x_sf = {}; }, "is required for a quantised x"},
           {"channels absent", [](auto& p) { p.num_per_channels.reset(); },
            "num_per_channels = none: is required for a quantised x", 4},
           {"num_per_channels",
            [](auto& p) {
              p.num_per_channels = 64;
              p.x_sf.extents[1] = 1;
            },
            "num_per_channels = 64: must be one of 32, 128", 4},
           {"scale shape", [](auto& p) { p.num_per_channels = 128; }, "x_sf.extents[1] = 2"},
       }},
  });
  expect_refusals<per_channel_cast_and_transpose>(
      transposed,
      {
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be bf16 or f32"},
          {"out not transposed",
           [](auto& p) {
             p.out.extents = {128, 64};
             p.out.strides = {64, 1};
           },
           "out.extents[0] = 128: must be hidden_size = 64"},
          {"num_tokens",
           [](auto& p) {
             p.x.extents[0] = p.out.extents[1] = 96;
             p.out_sf.extents[0] = 3;
           },
           "num_tokens = 96: must be a multiple of 128", 1},
          {"hidden_size", [](auto& p) { p.x.extents[1] = p.out.extents[0] = p.out_sf.extents[1] = 32; },
           "hidden_size = 32: must be a multiple of 64", 2},
          {"num_per_tokens",
           [](auto& p) {
             p.num_per_tokens = 64;
             p.out_sf.extents[0] = 2;
           },
           "num_per_tokens = 64: must be one of 32, 128", 3},
          {"fmt", [](auto& p) { p.fmt = "e2m1"; }, "fmt = 'e2m1'"},
      });
  expect_refusals<per_channel_cast_fused>(
      gathered,
      {
          {"rows with a map", [](auto& p) { p.pos_to_token.extents[0] = p.out.extents[0] = 40; },
           "num_expanded_tokens = 40: must be a multiple of 16", 1},
          {"rows without a map", [](auto& p) { p.pos_to_token = {}; },
           "out.extents[0] = 48: must be num_tokens = 5"},
          {"tokens without a map",
           [](auto& p) {
             p.pos_to_token = {};
             p.out.extents[0] = 5;
           },
           "num_tokens = 5: must be a multiple of 128", 1},
          {"dtype of the map", [](auto& p) { p.pos_to_token.dtype = dtype::i64; },
           "pos_to_token.dtype = i64: must be i32"},
          {"hidden_size", [](auto& p) { p.x.extents[1] = p.out.extents[1] = p.out_sf.extents[1] = 64; },
           "hidden_size = 64: must be a multiple of 128", 2},
          {"hidden_size of a plain x",
           [](auto& p) {
             p.x_sf = {};
             p.num_per_channels.reset();
             p.x.dtype = dtype::bf16;
             p.x.extents[1] = p.out.extents[1] = p.out_sf.extents[1] = 32;
           },
           "hidden_size = 32: must be a multiple of 64", 2},
          {"num_per_tokens",
           [](auto& p) {
             p.num_per_tokens = 32;
             p.out_sf.extents[0] = 2;
           },
           "num_per_tokens = 32: must be one of 128", 3},
          {"num_per_channels",
           [](auto& p) {
             p.num_per_channels = 32;
             p.x_sf.extents[1] = 4;
           },
           "num_per_channels = 32: must be one of 128", 4},
          {"channels absent", [](auto& p) { p.num_per_channels.reset(); },
           "num_per_channels = none: is required", 4},
          {"channels of a plain x",
           [](auto& p) {
             p.x_sf = {};
             p.x.dtype = dtype::bf16;
           },
           "num_per_channels = 128: must be absent", 4},
          {"scales absent", [](auto& p) { p.x_sf = {}; }, "is required for a quantised x"},
          {"fmt", [](auto& p) { p.fmt = "bf16"; }, "fmt = 'bf16'"},
      });
}

TEST_CASE("quant.per_channel_cast: packed, transposed and fused forms agree with the plain one") {
  memory m;
  for (const bool codes : {false, true}) {
    per_channel_cast p = codes ? quantised(m) : good(m);
    p.round_sf = true;
    run_on_host(p);
    bool zero = true;
    for (std::int64_t c = 0; c < 64; ++c)
      for (std::int64_t b = 0; b < 4; ++b) {
        float amax = 0;
        for (std::int64_t t = 32 * b; t < 32 * b + 32; ++t) {
          const float v = get(p.x, t, c) * (codes ? at<float>(p.x_sf, t, c / 32) : 1.0f);
          amax = numeric::amax_step(amax, v);
          REQUIRE(at<numeric::e4m3>(p.out, t, c) ==
                  numeric::to_e4m3(v / at<float>(p.out_sf, b, c)));  // a power of two
          zero = zero && v == 0;
        }
        const float sf = at<float>(p.out_sf, b, c);
        REQUIRE((amax <= 448 * sf && (amax > 224 * sf || amax < 1e-4f)));
      }
    CHECK(!zero);

    per_channel_cast packed = p;
    packed.use_packed_ue8m0 = true;
    packed.out = m.make(dtype::e4m3, {128, 64}, {72, 1});
    packed.out_sf = m.make(dtype::ue8m0x4, {1, 64});
    run_on_host(packed);
    CHECK(same_bytes(packed.out, p.out));
    for (std::int64_t c = 0; c < 64; ++c)
      for (int b = 0; b < 4; ++b)
        CHECK(at<numeric::ue8m0x4>(packed.out_sf, 0, c).byte(b) ==
              numeric::exponent_field(at<float>(p.out_sf, b, c)));
    packed.num_per_tokens = 128;  // one block: three bytes of padding, zero
    run_on_host(packed);
    CHECK((at<std::uint32_t>(packed.out_sf, 0, 5) >> 8) == 0);
    CHECK(at<std::uint32_t>(packed.out_sf, 0, 5) > 0);
  }
  const per_channel_cast p = good(m);
  run_on_host(p);
  const per_channel_cast_and_transpose t = transposed(m);
  run_on_host(t);
  CHECK(same_bytes(t.out_sf, p.out_sf));
  for (std::int64_t i = 0; i < 128; ++i)
    for (std::int64_t c = 0; c < 64; ++c)
      REQUIRE(at<numeric::e4m3>(t.out, c, i) == at<numeric::e4m3>(p.out, i, c));

  per_channel_cast one = good(m);
  one.num_per_tokens = 128;
  one.out_sf = m.make(dtype::f32, {1, 64});
  run_on_host(one);
  per_channel_cast_fused f;
  f.x = one.x;
  f.out = m.make(dtype::e4m3, {128, 64});
  f.out_sf = m.make(dtype::f32, {1, 64});
  run_on_host(f);
  CHECK(same_bytes(f.out, one.out));
  CHECK(same_bytes(f.out_sf, one.out_sf));
  // A block of rows in another order has the same scales and the rows in that order.
  f.pos_to_token = m.make(dtype::i32, {128});
  for (std::int64_t i = 0; i < 128; ++i)
    at<std::int32_t>(f.pos_to_token, i) = static_cast<std::int32_t>(i * 37 % 128);
  f.out = m.make(dtype::e4m3, {128, 64});
  run_on_host(f);
  CHECK(same_bytes(f.out_sf, one.out_sf));
  for (std::int64_t i = 0; i < 128; ++i)
    for (std::int64_t c = 0; c < 64; ++c)
      REQUIRE(at<numeric::e4m3>(f.out, i, c) == at<numeric::e4m3>(one.out, i * 37 % 128, c));
  CHECK(m.guards_intact());
}

TEST_CASE("quant.per_channel_cast_fused: absent rows, bad rows, no rows") {
  memory m;
  per_channel_cast_fused p = gathered(m);
  run_on_host(p);
  for (std::int64_t c = 0; c < 128; ++c) CHECK(at<unsigned char>(p.out, 5, c) == 0);
  at<std::int32_t>(p.pos_to_token, 9) = 5;
  expect_trap(p, "pos_to_token", 9);
  for (std::int64_t c = 0; c < 128; ++c) CHECK(at<unsigned char>(p.out, 9, c) == 0);
  at<std::int32_t>(p.pos_to_token, 3) = 1 << 30;
  expect_trap(p, "pos_to_token", 3);
  CHECK_NOTHROW(run_on_host(p));

  for (std::int64_t i = 0; i < 48; ++i) at<std::int32_t>(p.pos_to_token, i) = -1;
  run_on_host(p);
  CHECK(at<std::uint32_t>(p.out_sf, 0, 0) == 0x346FACADu);

  p.pos_to_token = without_rows(p.pos_to_token);
  p.out = without_rows(p.out);
  p.out_sf = without_rows(p.out_sf);
  CHECK_NOTHROW(run_on_host(p));
  per_channel_cast q = quantised(m);
  q.x = without_rows(q.x);
  q.x_sf = without_rows(q.x_sf);
  q.out = without_rows(q.out);
  q.out_sf = without_rows(q.out_sf);
  CHECK_NOTHROW(run_on_host(q));
  CHECK(m.guards_intact());
}
