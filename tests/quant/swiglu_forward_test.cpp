#include <cmath>

#include "quant/support.hpp"

using namespace portile;
using namespace portile::test;
using quant::per_channel_cast, quant::swiglu_forward, quant::swiglu_forward_and_per_token_cast;
using fused = quant::swiglu_forward_and_per_channel_cast_and_transpose;

namespace {

/// Rows 0..1 and 4..6 of 7 are owned.
swiglu_forward good(memory& m) {
  swiglu_forward p;
  p.x = m.make(dtype::bf16, {7, 128});
  p.out = m.make(dtype::f32, {7, 64});
  p.token_alignment = 4;
  p.psum_num_tokens_per_expert = m.of<std::int32_t>({3}, std::vector<int>{2, 4, 7});
  p.topk_weights = m.of<float>({7}, std::vector<float>{1, 2, 3, 4, 5, 6, 7});
  p.clamp_value = 0.5;
  p.clamped_count = m.of<std::int64_t>({4}, std::vector<int>{1, 2, 3, 4});
  fill_normal(p.x, 4);
  return p;
}
fused good_fused(memory& m) {
  fused p;
  p.x = m.make(dtype::bf16, {128, 128}, {136, 1});
  for (std::int64_t k = 0; k < 128 * 128; ++k)
    at<numeric::bf16>(p.x, k / 128, k % 128) = numeric::to_bf16(static_cast<float>(k * 7 % 199 - 99) * 0.03f);
  p.out = m.make(dtype::e4m3, {64, 128});
  p.out_sf = m.make(dtype::f32, {4, 64});
  p.num_per_tokens = 32;
  p.clamp_value = 1.0;
  return p;
}

}  // namespace

TEST_CASE("quant.swiglu_forward refuses bad problems") {
  expect_refusals<swiglu_forward>(
      good,
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be bf16 or f32"},
          {"dtype of out", [](auto& p) { p.out.dtype = dtype::e4m3; },
           "out.dtype = e4m3: must be bf16 or f32"},
          {"width of x", [](auto& p) { p.x.extents[1] = 64; },
           "x.extents[1] = 64: must be 2 * hidden_size = 128"},
          {"stride of x",
           [](auto& p) {
             p.x.strides = {1, 7};
           },
           "the last stride must be 1"},
          {"hidden_size",
           [](auto& p) {
             p.x.extents[1] = 64;
             p.out.extents[1] = 32;
           },
           "hidden_size = 32: must be a multiple of 64", 1},
          {"length of the weights", [](auto& p) { p.topk_weights.extents[0] = 6; },
           "topk_weights.extents[0] = 6: must be num_expanded_tokens = 7"},
          {"rank of the weights",
           [](auto& p) {
             p.topk_weights.rank = 2;
             p.topk_weights.extents = {7, 1};
             p.topk_weights.strides = {1, 1};
           },
           "topk_weights.rank = 2"},
          {"factor without weights",
           [](auto& p) {
             p.topk_weights = {};
             p.routed_scaling_factor = 2;
           },
           "routed_scaling_factor = 2: needs topk_weights", 2},
          {"token_alignment", [](auto& p) { p.token_alignment = -4; },
           "token_alignment = -4: must be positive"},
          {"negative clamp", [](auto& p) { p.clamp_value = -1; }, "clamp_value = -1: must not be negative"},
          {"counters without clamp", [](auto& p) { p.clamp_value.reset(); }, "needs clamp_value", 2},
          {"three counters", [](auto& p) { p.clamped_count.extents[0] = 3; },
           "clamped_count.extents[0] = 3: must be 4"},
          {"too much to count",
           [](auto& p) {
             for (tensor* t : {&p.x, &p.topk_weights, &p.out}) t->extents[0] = 1073741824;
           },
           "num_expanded_tokens = 1073741824: times ceil(hidden_size, 32) must be at most 2^31 - 1", 3},
          {"fmt against out", [](auto& p) { p.fmt = "bf16"; }, "must be empty or 'fp32'"},
          {"out overlaps itself",
           [](auto& p) {
             p.out.strides = {0, 1};
           },
           "must not overlap itself"},
      });
  expect_refusals<fused>(
      good_fused,
      {
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be bf16 or f32"},
          {"num_tokens",
           [](auto& p) {
             p.x.extents[0] = p.out.extents[1] = 96;
             p.out_sf.extents[0] = 3;
           },
           "num_tokens = 96: must be a multiple of 128", 1},
          {"hidden_size",
           [](auto& p) {
             p.x.extents[1] = 64;
             p.out.extents[0] = p.out_sf.extents[1] = 32;
           },
           "hidden_size = 32: must be a multiple of 64", 2},
          {"num_per_tokens",
           [](auto& p) {
             p.num_per_tokens = 64;
             p.out_sf.extents[0] = 2;
           },
           "num_per_tokens = 64: must be one of 32, 128", 3},
          {"transposed or not", [](auto& p) { p.without_transpose = true; },
           "out.extents[0] = 64: must be without_transpose ? num_tokens : hidden_size = 128"},
          {"negative clamp", [](auto& p) { p.clamp_value = -0.5; },
           "clamp_value = -0.5: must not be negative"},
          {"fmt", [](auto& p) { p.fmt = "e2m1"; }, "fmt = 'e2m1'"},
      });
}

TEST_CASE("quant.swiglu_forward: rows, weights, counters, bad data") {
  memory m;
  const swiglu_forward p = good(m);
  run_on_host(p);
  for (std::int64_t t = 0; t < 7; ++t) {
    const bool owned = t < 2 || t >= 4;
    for (std::int64_t j = 0; j < 64; ++j) {
      if (!owned) {
        CHECK(at<std::uint32_t>(p.out, t, j) == 0xA5A5A5A5u);
        continue;
      }
      const double l = std::min(get(p.x, t, j), 0.5f),
                   r = std::max(std::min(get(p.x, t, 64 + j), 0.5f), -0.5f);
      const double want = l / (1 + std::exp(-l)) * r * static_cast<double>(t + 1);
      REQUIRE(std::fabs(get(p.out, t, j) - want) <= 1e-6 * std::fabs(want));
    }
  }
  CHECK(at<std::int64_t>(p.clamped_count, 3) == 4 + 5 * 64);
  CHECK(at<std::int64_t>(p.clamped_count, 0) > 1);

  // The quantised form clamps and counts alike, and quantises these values.
  memory n;
  swiglu_forward_and_per_token_cast c;
  c.x = p.x;
  c.psum_num_tokens_per_expert = p.psum_num_tokens_per_expert;
  c.topk_weights = p.topk_weights;
  c.token_alignment = 4;
  c.clamp_value = 0.5;
  c.clamped_count = n.of<std::int64_t>({4}, std::vector<int>{1, 2, 3, 4});
  c.num_per_channels = 64;
  c.out = n.make(dtype::e4m3, {7, 64});
  c.out_sf = n.make(dtype::f32, {7, 1});
  run_on_host(c);
  CHECK(same_bytes(c.clamped_count, p.clamped_count));
  quant::per_token_cast q{.x = p.out,
                          .x_sf = {},
                          .out = n.make(dtype::e4m3, {7, 64}),
                          .out_sf = n.make(dtype::f32, {7, 1}),
                          .fmt = {},
                          .num_per_channels = 64};
  run_on_host(q);
  for (const std::int64_t t : {0, 1, 4, 5, 6}) {
    CHECK(at<float>(c.out_sf, t) == at<float>(q.out_sf, t));
    for (std::int64_t j = 0; j < 64; ++j)
      REQUIRE(at<numeric::e4m3>(c.out, t, j) == at<numeric::e4m3>(q.out, t, j));
  }

  at<std::int32_t>(p.psum_num_tokens_per_expert, 1) = 1 << 30;
  expect_trap(p, "psum_num_tokens_per_expert", 1);
  CHECK_NOTHROW(run_on_host(p));
  swiglu_forward none = p;
  none.x = without_rows(p.x);
  none.out = without_rows(p.out);
  none.topk_weights = without_rows(p.topk_weights);
  none.psum_num_tokens_per_expert = m.of<std::int32_t>({3}, std::vector<int>{0, 0, 0});
  CHECK_NOTHROW(run_on_host(none));
  CHECK((m.guards_intact() && n.guards_intact()));
}

TEST_CASE("quant.swiglu_forward_and_per_channel_cast_and_transpose is its parts") {
  memory m;
  fused p = good_fused(m);
  run_on_host(p);
  swiglu_forward a;
  a.x = p.x;
  a.out = m.make(dtype::bf16, {128, 64});
  a.clamp_value = 1.0;
  run_on_host(a);
  per_channel_cast c{.x = a.out,
                     .x_sf = {},
                     .out = m.make(dtype::e4m3, {128, 64}),
                     .out_sf = m.make(dtype::f32, {4, 64}),
                     .fmt = {},
                     .num_per_tokens = 32,
                     .num_per_channels = {}};
  run_on_host(c);
  CHECK(same_bytes(p.out_sf, c.out_sf));
  for (std::int64_t t = 0; t < 128; ++t)
    for (std::int64_t j = 0; j < 64; ++j)
      REQUIRE(at<numeric::e4m3>(p.out, j, t) == at<numeric::e4m3>(c.out, t, j));
  p.without_transpose = true;
  p.out = m.make(dtype::e4m3, {128, 64}, {70, 1});
  run_on_host(p);
  CHECK(same_bytes(p.out, c.out));
  p.x = without_rows(p.x);
  p.out = without_rows(p.out);
  p.out_sf = without_rows(p.out_sf);
  CHECK_NOTHROW(run_on_host(p));
  CHECK(m.guards_intact());
}
