#include <cmath>

#include "quant/support.hpp"

using namespace portile;
using namespace portile::test;
using quant::per_token_cast, quant::swiglu_backward, quant::swiglu_forward;
using fused = quant::swiglu_backward_and_per_token_cast;

namespace {

/// Rows 0..1 and 4..5 belong to experts, 2..3 and 6..7 are padding, 8 lies behind.
swiglu_backward good(memory& m) {
  swiglu_backward p;
  p.x = m.make(dtype::f32, {9, 128});
  p.out_grad = m.make(dtype::f32, {9, 64});
  p.psum_num_tokens_per_expert = m.of<std::int32_t>({3}, std::vector<int>{2, 4, 6});
  p.token_alignment = 4;
  p.topk_weights = m.of<float>({9}, std::vector<float>{0.5f, 1, 2, 3, 0.25f, -1, 1, 1, 2});
  p.clamp_value = 1.0;
  p.x_grad = m.make(dtype::f32, {9, 128});
  p.topk_weights_grad = m.make(dtype::f32, {9});
  p.act_out = m.make(dtype::f32, {9, 64});
  fill_normal(p.x, 4);
  fill_normal(p.out_grad, 5);
  return p;
}
/// Six rows, two tokens with three choices; row 5 is nobody's.
fused mapped(memory& m) {
  fused p;
  p.x = m.make(dtype::e4m3, {6, 256});
  p.x_sf = m.make(dtype::f32, {6, 8});
  p.out_grad = m.make(dtype::bf16, {6, 128});
  p.topk_weights = m.of<float>({2, 3}, std::vector<float>{0.5f, 1, 2, 3, 0.25f, 4});
  p.pos_to_token_topk = m.of<std::int32_t>({6}, std::vector<int>{3, 0, 1, 4, 2, -1});
  p.token_topk_to_pos = m.of<std::int32_t>({2, 3}, std::vector<int>{1, 2, 4, 0, 3, -1});
  p.x_grad_fp8 = m.make(dtype::e4m3, {6, 256});
  p.x_grad_fp8_sf = m.make(dtype::f32, {6, 8});
  p.x_grad = m.make(dtype::bf16, {6, 256});
  p.topk_weights_grad = m.make(dtype::f32, {2, 3});
  p.act_out = m.make(dtype::bf16, {6, 128});
  p.num_per_channels = 32;
  fill_normal(p.x, 1);
  fill_normal(p.out_grad, 2);
  for (std::int64_t k = 0; k < 48; ++k)
    static_cast<float*>(p.x_sf.data)[k] = 0.01f * static_cast<float>(k % 5 + 1);
  return p;
}

}  // namespace

TEST_CASE("quant.swiglu_backward refuses bad problems") {
  expect_refusals<swiglu_backward>(
      good,
      {
          {"gradient absent", [](auto& p) { p.out_grad = {}; }, "out_grad = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be bf16 or f32"},
          {"dtype of the gradient", [](auto& p) { p.out_grad.dtype = dtype::bf16; },
           "out_grad.dtype = bf16: must be that of x, f32", 2},
          {"dtype of act_out", [](auto& p) { p.act_out.dtype = dtype::bf16; },
           "act_out.dtype = bf16: must be that of x_grad, f32", 2},
          {"width of x", [](auto& p) { p.x.extents[1] = 64; },
           "x.extents[1] = 64: must be 2 * hidden_size = 128"},
          {"hidden_size",
           [](auto& p) {
             p.x.extents[1] = p.x_grad.extents[1] = 64;
             p.out_grad.extents[1] = p.act_out.extents[1] = 32;
           },
           "hidden_size = 32: must be a multiple of 64", 1},
          {"factor without weights",
           [](auto& p) {
             p.topk_weights = p.topk_weights_grad = {};
             p.routed_scaling_factor = 2;
           },
           "routed_scaling_factor = 2: needs topk_weights", 3},
          {"weight gradient without weights", [](auto& p) { p.topk_weights = {}; }, "needs topk_weights", 3},
          {"token_alignment", [](auto& p) { p.token_alignment = 0; },
           "token_alignment = 0: must be positive"},
          {"negative clamp", [](auto& p) { p.clamp_value = -1; }, "clamp_value = -1: must not be negative"},
          {"fmt against x_grad", [](auto& p) { p.fmt = "bf16"; }, "must be empty or 'fp32'"},
          {"x_grad overlaps itself",
           [](auto& p) {
             p.x_grad.strides = {0, 1};
           },
           "must not overlap itself"},
      });
  expect_refusals<fused>(
      mapped,
      {
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::bf16; }, "x.dtype = bf16: must be e4m3"},
          {"scales absent", [](auto& p) { p.x_sf = {}; }, "x_sf = absent: is required"},
          {"num_per_channels",
           [](auto& p) {
             p.num_per_channels = 64;
             p.x_sf.extents[1] = p.x_grad_fp8_sf.extents[1] = 4;
           },
           "num_per_channels = 64: must be one of 32, 128", 1},
          {"groups across the halves",
           [](auto& p) {
             p.num_per_channels = 128;
             p.x.extents[1] = p.x_grad.extents[1] = p.x_grad_fp8.extents[1] = 128;
             p.out_grad.extents[1] = p.act_out.extents[1] = 64;
             p.x_sf.extents[1] = p.x_grad_fp8_sf.extents[1] = 1;
           },
           "hidden_size = 64: must be a multiple of 128", 1},
          {"scale shape", [](auto& p) { p.x_sf.extents[1] = 4; }, "x_sf.extents[1] = 4"},
          {"map without weights", [](auto& p) { p.topk_weights = {}; },
           "topk_weights = absent: must be given together with pos_to_token_topk", 2},
          {"factor without weights",
           [](auto& p) {
             p.topk_weights = p.topk_weights_grad = p.pos_to_token_topk = {};
             p.routed_scaling_factor = 2;
           },
           "routed_scaling_factor = 2: needs topk_weights", 2},
          {"weight gradient without weights", [](auto& p) { p.topk_weights = p.pos_to_token_topk = {}; },
           "needs topk_weights", 2},
          {"weights without map", [](auto& p) { p.pos_to_token_topk = {}; },
           "topk_weights.rank = 2: must be 1"},
          {"weight gradient without rows", [](auto& p) { p.token_topk_to_pos = {}; },
           "token_topk_to_pos = absent: is required for a topk_weights_grad of rank 2", 2},
          {"rank of the weight gradient",
           [](auto& p) {
             p.topk_weights_grad.rank = 1;
             p.topk_weights_grad.extents[0] = 6;
             p.topk_weights_grad.strides[0] = 1;
           },
           "topk_weights_grad.rank = 1: must be that of topk_weights, 2"},
          {"packed without round",
           [](auto& p) {
             p.use_packed_ue8m0 = true;
             p.x_grad_fp8_sf.dtype = dtype::ue8m0x4;
             p.x_grad_fp8_sf.extents[1] = 2;
           },
           "needs round_sf", 3},
          {"strides of the scales", [](auto& p) { p.use_tma_aligned_col_major_sf = true; },
           "x_grad_fp8_sf.strides"},
          {"rows of a 3-D x",
           [](auto& p) {
             p.x.rank = 3;
             p.x.extents = {2, 4, 256};
             p.x.strides = {1024, 256, 1};
           },
           "must make num_expanded_tokens rows"},
          {"spacing of a 3-D x",
           [](auto& p) {
             p.x.rank = 3;
             p.x.extents = {2, 3, 256};
             p.x.strides = {1024, 256, 1};
           },
           "rows must be evenly spaced"},
          {"negative clamp", [](auto& p) { p.clamp_value = -1; }, "clamp_value = -1: must not be negative"},
          {"fmt", [](auto& p) { p.fmt = "bf16"; }, "fmt = 'bf16'"},
      });
}

TEST_CASE("quant.swiglu_backward agrees with finite differences") {
  memory m;
  swiglu_backward p = good(m);
  p.psum_num_tokens_per_expert = {};
  p.routed_scaling_factor = 1.5;
  run_on_host(p);
  const float eps = 0x1p-7f;
  const auto forward = [&](std::int64_t t, std::int64_t c, float step) {
    swiglu_forward f;
    f.x = m.make(dtype::f32, {1, 128});
    for (std::int64_t k = 0; k < 128; ++k)
      at<float>(f.x, 0, k) = at<float>(p.x, t, k) + (k == c ? step : 0.0f);
    f.topk_weights = make_tensor(&at<float>(p.topk_weights, t), {1});
    f.routed_scaling_factor = 1.5;
    f.clamp_value = 1.0;
    f.out = m.make(dtype::f32, {1, 64});
    run_on_host(f);
    return static_cast<double>(get(f.out, 0, c % 64));  // the only result that moves
  };
  std::int64_t cut = 0;
  for (const std::int64_t t : {0, 5, 8})
    for (std::int64_t c = 0; c < 128; c += 5) {
      const float x = at<float>(p.x, t, c);
      if (std::fabs(std::fabs(x) - 1.0f) < 2 * eps) continue;  // the clamp has a kink
      const double slope =
          (forward(t, c, eps) - forward(t, c, -eps)) / (2 * eps) * at<float>(p.out_grad, t, c % 64);
      CHECK(std::fabs(slope - get(p.x_grad, t, c)) <= 1e-3 * (1 + std::fabs(slope)));
      cut += x > 1.0f;
      if (x > 1.0f) CHECK(get(p.x_grad, t, c) == 0.0f);
    }
  CHECK(cut > 0);
  // The activation is linear in the weight, and act_out is the forward result.
  for (std::int64_t t = 0; t < 9; ++t) {
    swiglu_forward f;
    f.x = make_tensor(&at<float>(p.x, t, 0), {1, 128});
    f.clamp_value = 1.0;
    f.out = m.make(dtype::f32, {1, 64});
    run_on_host(f);
    double sum = 0;
    for (std::int64_t j = 0; j < 64; ++j) {
      sum += 1.5 * static_cast<double>(get(f.out, 0, j)) * at<float>(p.out_grad, t, j);
      REQUIRE(get(p.act_out, t, j) == get(f.out, 0, j) * (at<float>(p.topk_weights, t) * 1.5f));
    }
    CHECK(std::fabs(at<float>(p.topk_weights_grad, t) - sum) <= 1e-4 * (1 + std::fabs(sum)));
  }
  CHECK(m.guards_intact());
}

TEST_CASE("quant.swiglu_backward: padding gets zeros, rows behind are computed, bad segments are reported") {
  memory m;
  swiglu_backward p = good(m), all = p;
  run_on_host(p);
  all.psum_num_tokens_per_expert = {};
  all.x_grad = m.make(dtype::f32, {9, 128});
  all.act_out = m.make(dtype::f32, {9, 64});
  all.topk_weights_grad = m.make(dtype::f32, {9});
  run_on_host(all);
  for (std::int64_t t = 0; t < 9; ++t) {
    const bool padding = t == 2 || t == 3 || t == 6 || t == 7;
    for (std::int64_t c = 0; c < 128; ++c)
      REQUIRE(get(p.x_grad, t, c) == (padding ? 0.0f : get(all.x_grad, t, c)));
    for (std::int64_t c = 0; c < 64; ++c)
      REQUIRE(get(p.act_out, t, c) == (padding ? 0.0f : get(all.act_out, t, c)));
    CHECK(at<float>(p.topk_weights_grad, t) == (padding ? 0.0f : at<float>(all.topk_weights_grad, t)));
  }
  at<std::int32_t>(p.psum_num_tokens_per_expert, 2) = 10;
  expect_trap(p, "psum_num_tokens_per_expert", 2);
  at<std::int32_t>(p.psum_num_tokens_per_expert, 0) = -3;
  expect_trap(p, "psum_num_tokens_per_expert", 0);
  CHECK_NOTHROW(run_on_host(p));

  swiglu_backward none = all;
  for (tensor* t :
       {&none.x, &none.out_grad, &none.topk_weights, &none.x_grad, &none.topk_weights_grad, &none.act_out})
    *t = without_rows(*t);
  CHECK_NOTHROW(run_on_host(none));
  CHECK(m.guards_intact());
}

TEST_CASE("quant.swiglu_backward_and_per_token_cast is the cast of swiglu_backward of the decoded x") {
  memory m;
  const fused p = mapped(m);
  run_on_host(p);
  swiglu_backward b;
  b.x = m.make(dtype::f32, {6, 256});
  b.out_grad = m.make(dtype::f32, {6, 128});
  for (std::int64_t t = 0; t < 6; ++t) {
    for (std::int64_t c = 0; c < 256; ++c)
      at<float>(b.x, t, c) = get(p.x, t, c) * at<float>(p.x_sf, t, c / 32);
    for (std::int64_t c = 0; c < 128; ++c) at<float>(b.out_grad, t, c) = get(p.out_grad, t, c);
  }
  b.topk_weights = m.of<float>({6}, std::vector<float>{3, 0.5f, 1, 0.25f, 2, 0});
  b.x_grad = m.make(dtype::f32, {6, 256});
  b.act_out = m.make(dtype::f32, {6, 128});
  b.topk_weights_grad = m.make(dtype::f32, {6});
  run_on_host(b);
  for (std::int64_t t = 0; t < 6; ++t) {
    for (std::int64_t c = 0; c < 256; ++c)
      REQUIRE(at<numeric::bf16>(p.x_grad, t, c) == numeric::to_bf16(get(b.x_grad, t, c)));
    for (std::int64_t c = 0; c < 128; ++c)
      REQUIRE(at<numeric::bf16>(p.act_out, t, c) == numeric::to_bf16(get(b.act_out, t, c)));
  }
  const int row_of[6] = {1, 2, 4, 0, 3, -1};
  for (int k = 0; k < 6; ++k)
    CHECK(at<float>(p.topk_weights_grad, k / 3, k % 3) ==
          (row_of[k] < 0 ? 0.0f : at<float>(b.topk_weights_grad, row_of[k])));
  per_token_cast c{.x = b.x_grad,
                   .x_sf = {},
                   .out = m.make(dtype::e4m3, {6, 256}),
                   .out_sf = m.make(dtype::f32, {6, 8}),
                   .fmt = {},
                   .num_per_channels = 32};
  run_on_host(c);
  CHECK(same_bytes(c.out, p.x_grad_fp8));
  CHECK(same_bytes(c.out_sf, p.x_grad_fp8_sf));

  // The same x in three dimensions, and packed column-major scales.
  fused q = p;
  q.x.rank = 3;
  q.x.extents = {3, 2, 256};
  q.x.strides = {512, 256, 1};
  q.round_sf = q.use_packed_ue8m0 = q.use_tma_aligned_col_major_sf = true;
  q.x_grad_fp8_sf = m.make(dtype::ue8m0x4, {6, 2}, {1, 8});
  q.x_grad = m.make(dtype::bf16, {6, 256});
  run_on_host(q);
  CHECK(same_bytes(q.x_grad, p.x_grad));
  for (std::int64_t t = 0; t < 6; ++t)
    for (int k = 0; k < 8; ++k) {
      const float sf = numeric::ue8m0_to_float(at<numeric::ue8m0x4>(q.x_grad_fp8_sf, t, k / 4).byte(k % 4)),
                  plain = at<float>(p.x_grad_fp8_sf, t, k);
      CHECK((sf >= plain && sf < 2 * plain));
    }
  CHECK(m.guards_intact());
}

TEST_CASE("quant.swiglu_backward_and_per_token_cast: padding, bad data, no rows") {
  memory m;
  fused p = mapped(m);
  at<std::int32_t>(p.token_topk_to_pos, 1, 0) = 6;
  expect_trap(p, "token_topk_to_pos", 3);
  CHECK(at<float>(p.topk_weights_grad, 1, 0) == 0.0f);
  at<std::int32_t>(p.pos_to_token_topk, 2) = 6;
  expect_trap(p, "pos_to_token_topk", 2);
  CHECK_NOTHROW(run_on_host(p));

  fused s = mapped(m);
  s.pos_to_token_topk = s.token_topk_to_pos = s.topk_weights_grad = s.topk_weights = {};
  s.psum_num_tokens_per_expert = m.of<std::int32_t>({2}, std::vector<int>{1, 4});
  s.token_alignment = 2;
  run_on_host(s);
  CHECK(at<float>(s.x_grad_fp8_sf, 1, 0) == 0.0f);
  CHECK(at<unsigned char>(s.x_grad_fp8, 1, 9) == 0);
  CHECK(at<std::uint16_t>(s.x_grad, 1, 200) == 0);
  CHECK(at<float>(s.x_grad_fp8_sf, 5, 0) > 0.0f);  // behind the segments
  at<std::int32_t>(s.psum_num_tokens_per_expert, 1) = 7;
  expect_trap(s, "psum_num_tokens_per_expert", 1);

  fused none = mapped(m);
  for (tensor* t : {&none.x, &none.x_sf, &none.out_grad, &none.pos_to_token_topk, &none.x_grad_fp8,
                    &none.x_grad_fp8_sf, &none.x_grad, &none.act_out})
    *t = without_rows(*t);
  for (int k = 0; k < 6; ++k) at<std::int32_t>(none.token_topk_to_pos, k / 3, k % 3) = -1;
  run_on_host(none);
  for (int k = 0; k < 6; ++k) CHECK(at<float>(none.topk_weights_grad, k / 3, k % 3) == 0.0f);
  CHECK(m.guards_intact());
}
