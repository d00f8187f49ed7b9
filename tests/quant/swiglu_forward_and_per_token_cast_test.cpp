#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/e4m3.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using op = quant::swiglu_forward_and_per_token_cast;

namespace {

op good(memory& m) {
  op p;
  p.x = m.make(dtype::bf16, {6, 384});
  p.out = m.make(dtype::e4m3, {6, 192});
  p.out_sf = m.make(dtype::f32, {6, 2});
  fill_normal(p.x, 3);
  return p;
}
/// With explicit maps, the clamp and its counters.
op mapped(memory& m) {
  op p = good(m);
  p.topk_weights = m.of<float>({2, 2}, std::vector<float>{0.5f, 0.25f, 1.5f, 2.0f});
  p.pos_to_token_topk = m.of<std::int32_t>({6}, std::vector<int>{3, 0, -1, 1, 2, -1});
  p.pos_to_expert = m.of<std::int32_t>({6}, std::vector<int>{0, 0, 0, 1, 1, -1});
  p.clamp_value = 0.5;
  p.clamped_count = m.of<std::int64_t>({3}, std::vector<int>{10, 20, 30});
  return p;
}
/// Rows 0..1 and 4..6 of 7 are owned.
op psum(memory& m) {
  op p;
  p.x = m.make(dtype::bf16, {7, 128});
  p.out = m.make(dtype::e4m3, {7, 64});
  p.out_sf = m.make(dtype::f32, {7, 2});
  p.num_per_channels = 32;
  p.token_alignment = 4;
  p.psum_num_tokens_per_expert = m.of<std::int32_t>({3}, std::vector<int>{2, 4, 7});
  p.topk_weights = m.of<float>({7}, std::vector<float>{1, 2, 3, 4, 5, 6, 7});
  p.clamp_value = 0.5;
  p.clamped_count = m.of<std::int64_t>({4}, std::vector<int>{0, 0, 0, 0});
  fill_normal(p.x, 4);
  return p;
}

}  // namespace

TEST_CASE("quant.swiglu_forward_and_per_token_cast refuses bad problems") {
  expect_refusals<op>(
      mapped,
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be bf16 or f32"},
          {"dtype of out", [](auto& p) { p.out.dtype = dtype::e2m1x2; }, "out.dtype = e2m1x2: must be e4m3"},
          {"stride of x",
           [](auto& p) {
             p.x.strides = {1, 6};
           },
           "the last stride must be 1"},
          {"misaligned", [](auto& p) { p.x.data = static_cast<char*>(p.x.data) + 1; }, "misaligned"},
          {"width of x", [](auto& p) { p.x.extents[1] = 320; },
           "x.extents[1] = 320: must be 2 * hidden_size = 384"},
          {"hidden_size",
           [](auto& p) {
             p.x.extents[1] = 320;
             p.out.extents[1] = 160;
           },
           "hidden_size = 160: must be a multiple of 64", 1},
          {"num_per_channels",
           [](auto& p) {
             p.num_per_channels = 64;
             p.out_sf.extents[1] = p.out_sf.strides[0] = 3;
           },
           "num_per_channels = 64: must be one of 32, 128", 2},
          {"columns of a whole row",
           [](auto& p) {
             p.num_per_channels = 192;
             p.out_sf.extents[1] = 1;
             p.use_tma_aligned_col_major_sf = true;
           },
           "needs num_per_channels 32 or 128", 3},
          {"map without weights", [](auto& p) { p.topk_weights = {}; },
           "topk_weights = absent: must be given together with pos_to_token_topk", 4},
          {"map with one weight per row",
           [](auto& p) {
             p.topk_weights.rank = 1;
             p.topk_weights.extents[0] = 6;
             p.topk_weights.strides[0] = 1;
           },
           "topk_weights.rank = 1: must be 2"},
          {"weights without map", [](auto& p) { p.pos_to_token_topk = {}; },
           "topk_weights.rank = 2: must be 1"},
          {"two owners of a row", [](auto& p) { p.psum_num_tokens_per_expert = p.pos_to_expert; },
           "must be absent: psum_num_tokens_per_expert says"},
          {"length of a map", [](auto& p) { p.pos_to_expert.extents[0] = 5; },
           "pos_to_expert.extents[0] = 5: must be num_expanded_tokens = 6"},
          {"factor without weights",
           [](auto& p) {
             p.topk_weights = p.pos_to_token_topk = {};
             p.routed_scaling_factor = 2;
           },
           "routed_scaling_factor = 2: needs topk_weights", 4},
          {"token_alignment", [](auto& p) { p.token_alignment = 0; },
           "token_alignment = 0: must be positive"},
          {"negative clamp", [](auto& p) { p.clamp_value = -1; }, "clamp_value = -1: must not be negative"},
          {"counters without clamp", [](auto& p) { p.clamp_value.reset(); }, "needs clamp_value", 4},
          {"number of counters", [](auto& p) { p.clamped_count.extents[0] = 2; },
           "clamped_count.extents[0] = 2: must be 3 or 4"},
          {"too much to count",
           [](auto& p) {
             for (tensor* t : {&p.x, &p.pos_to_token_topk, &p.pos_to_expert, &p.out, &p.out_sf})
               t->extents[0] = 357913942;
           },
           "num_expanded_tokens = 357913942: times ceil(hidden_size, 32) must be at most 2^31 - 1", 5},
          {"negative sf_clamp_min", [](auto& p) { p.sf_clamp_min = -1; },
           "sf_clamp_min = -1: must not be negative"},
          {"packed without round",
           [](auto& p) {
             p.use_packed_ue8m0 = true;
             p.out_sf.dtype = dtype::ue8m0x4;
             p.out_sf.extents[1] = 1;
           },
           "needs round_sf", 6},
          {"strides of out_sf", [](auto& p) { p.use_tma_aligned_col_major_sf = true; }, "out_sf.strides"},
          {"unknown fmt", [](auto& p) { p.fmt = "e2m1"; }, "fmt = 'e2m1'"},
          {"out overlaps itself",
           [](auto& p) {
             p.out.strides = {0, 1};
           },
           "must not overlap itself"},
      });
}

TEST_CASE("quant.swiglu_forward_and_per_token_cast reports bad data and stays within its memory") {
  const auto both = [](memory& m, const op& p, const std::string& rule, std::int64_t index) {
    expect_trap(p, rule, index);
    queue q{cpu_selector};
    CHECK_NOTHROW(run(q, p));
    CHECK(m.guards_intact());
  };
  memory m;
  op p = psum(m);
  at<std::int32_t>(p.psum_num_tokens_per_expert, 2) = 8;  // one row too many
  both(m, p, "psum_num_tokens_per_expert", 2);
  at<std::int32_t>(p.psum_num_tokens_per_expert, 2) = 7;
  at<std::int32_t>(p.psum_num_tokens_per_expert, 1) = -5;
  both(m, p, "psum_num_tokens_per_expert", 1);
  op q = mapped(m);
  at<std::int32_t>(q.pos_to_token_topk, 3) = 4;
  both(m, q, "pos_to_token_topk", 3);
  for (std::int64_t j = 0; j < 192; ++j) CHECK((at<unsigned char>(q.out, 3, j) & 0x7F) == 0);
  at<std::int32_t>(q.pos_to_token_topk, 4) = 1 << 30;
  both(m, q, "pos_to_token_topk", 3);
}

TEST_CASE("quant.swiglu_forward_and_per_token_cast: only rows that count are written and counted") {
  memory m;
  const op p = mapped(m);
  queue q{cpu_selector};
  run(q, p);
  for (std::int64_t j = 0; j < 192; ++j) {
    CHECK(at<unsigned char>(p.out, 5, j) == memory::poison);
    CHECK((at<unsigned char>(p.out, 2, j) & 0x7F) == 0);  // weight 0
  }
  CHECK(at<std::uint32_t>(p.out_sf, 5, 0) == 0xA5A5A5A5u);
  CHECK(at<std::uint32_t>(p.out_sf, 2, 0) == 0x346FACADu);
  std::int64_t want[3] = {10, 20, 30};
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 192; ++j) {
      const float l = numeric::to_float(at<numeric::bf16>(p.x, i, j)),
                  r = numeric::to_float(at<numeric::bf16>(p.x, i, 192 + j));
      want[0] += l > 0.5f;
      want[1] += r > 0.5f;
      want[2] += r < -0.5f;
    }
  for (int k = 0; k < 3; ++k) CHECK(at<std::int64_t>(p.clamped_count, k) == want[k]);
  CHECK(want[2] > 30);

  // The psum layout gives each owned row what the row gives alone, with its weight taken into x's place.
  memory n;
  const op s = psum(n);
  run(q, s);
  for (const std::int64_t row : {2, 3}) {
    CHECK(at<unsigned char>(s.out, row, 0) == memory::poison);
    CHECK(at<std::uint32_t>(s.out_sf, row, 1) == 0xA5A5A5A5u);
  }
  CHECK(at<std::int64_t>(s.clamped_count, 3) == 5 * 64);
  for (const std::int64_t row : {0, 1, 4, 5, 6}) {
    op one;
    one.x = make_tensor(&at<numeric::bf16>(s.x, row, 0), {1, 128});
    one.topk_weights = make_tensor(&at<float>(s.topk_weights, row), {1});
    one.out = n.make(dtype::e4m3, {1, 64});
    one.out_sf = n.make(dtype::f32, {1, 2});
    one.num_per_channels = 32;
    one.clamp_value = 0.5;
    run(q, one);
    for (std::int64_t j = 0; j < 64; ++j)
      REQUIRE(at<numeric::e4m3>(one.out, 0, j) == at<numeric::e4m3>(s.out, row, j));
    CHECK(at<float>(one.out_sf, 0, 1) == at<float>(s.out_sf, row, 1));
  }
  CHECK((m.guards_intact() && n.guards_intact()));
}

TEST_CASE("quant.swiglu_forward_and_per_token_cast: factor, clamp, extremes and no rows") {
  memory m;
  op p = good(m);
  p.topk_weights = m.of<float>({6}, std::vector<float>{1, 1, 1, 1, 1, 1});
  p.round_sf = true;
  queue q{cpu_selector};
  run(q, p);
  op twice = p;
  twice.routed_scaling_factor = 2;
  twice.out = m.make(dtype::e4m3, {6, 192});
  twice.out_sf = m.make(dtype::f32, {6, 2});
  run(q, twice);
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t j = 0; j < 192; ++j)
      REQUIRE(at<numeric::e4m3>(p.out, i, j) == at<numeric::e4m3>(twice.out, i, j));
    CHECK(at<float>(twice.out_sf, i, 0) == 2 * at<float>(p.out_sf, i, 0));
  }

  op e = good(m);
  e.x = m.make(dtype::f32, {6, 384}, {500, 1});
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t j = 0; j < 384; ++j) at<float>(e.x, i, j) = 100.0f;
  at<float>(e.x, 0, 0) = -200.0f;              // exp overflows: -0
  at<std::uint32_t>(e.x, 1, 0) = 0x7FC00000u;  // NaN
  e.clamp_value = 1.0;
  e.sf_clamp_min = 448.0;
  run(q, e);
  CHECK(at<unsigned char>(e.out, 0, 0) == 0x80);
  CHECK(at<unsigned char>(e.out, 1, 0) == 0x7F);
  CHECK(at<float>(e.out_sf, 1, 0) == 1.0f);
  CHECK(at<unsigned char>(e.out, 2, 7) ==
        numeric::to_e4m3(0.7310586f).bits);  // every other value is 1 / (1 + exp(-1))

  op none = good(m);
  none.x.extents[0] = none.out.extents[0] = none.out_sf.extents[0] = 0;
  none.x.data = none.out.data = none.out_sf.data = nullptr;
  CHECK_NOTHROW(run(q, none));
  CHECK(m.guards_intact());
}
