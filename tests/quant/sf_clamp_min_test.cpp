#include <cstring>
#include <set>

#include <portile/core/dispatch.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

namespace {

std::set<std::string> covered;

tensor zeros(memory& m, dtype type, std::initializer_list<std::int64_t> extents) {
  const tensor t = m.make(type, extents);
  std::memset(t.data, 0, static_cast<std::size_t>(t.numel() * size_of(type)));
  return t;
}

/// p quantises zeros, so that amax is the lower bound alone: the bound `largest code` gives scales of 1 and
/// twice that scales of 2, whatever the operation did before the cast.
template <class P>
void check_bound(P p, const tensor& sf, double largest_code) {
  covered.insert(P::name);
  queue q{cpu_selector};
  INFO(P::name);
  for (const double scale : {1.0, 2.0, 0.25}) {
    p.sf_clamp_min = scale * largest_code;
    run(q, p);
    for (std::int64_t i = 0; i < sf.numel(); ++i) REQUIRE(static_cast<float*>(sf.data)[i] == scale);
  }
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    p.sf_clamp_min = bad;
    const status s = check(p);
    INFO(s.text());
    CHECK(s.code() == status_code::invalid_argument);
    CHECK(s.text().find("sf_clamp_min") != std::string::npos);
    CHECK(s.text().find("must not be negative") != std::string::npos);
  }
}

/// Operations with x, out and out_sf.
template <class P>
P cast_of(memory& m, dtype codes, std::int64_t rows, std::int64_t cols, std::int64_t sf_rows,
          std::int64_t sf_cols) {
  P p;
  p.x = zeros(m, dtype::bf16, {rows, cols});
  if constexpr (requires { p.out; }) p.out = m.make(codes, {rows, stored_extent(codes, cols)});
  p.out_sf = m.make(dtype::f32, {sf_rows, sf_cols});
  return p;
}

}  // namespace

TEST_CASE("sf_clamp_min replaces the lower bound of amax in every cast that computes scales") {
  using namespace quant;
  constexpr double e4m3 = 448, e2m1 = 6, e5m6 = 65024;
  memory m;
  {
    auto p = cast_of<per_token_cast>(m, dtype::e4m3, 3, 256, 3, 2);
    check_bound(p, p.out_sf, e4m3);
  }
  {
    auto p = cast_of<per_token_cast>(m, dtype::e2m1x2, 3, 256, 3, 2);
    check_bound(p, p.out_sf, e2m1);
  }
  {
    auto p = cast_of<per_token_cast_to_e5m6>(m, dtype::e5m6x8, 3, 256, 3, 1);
    check_bound(p, p.out_sf, e5m6);
  }
  {
    auto p = cast_of<per_token_cast_with_sf_only>(m, dtype::none, 3, 256, 3, 2);
    p.fmt = "e4m3";
    check_bound(p, p.out_sf, e4m3);
  }
  {
    auto p = cast_of<per_block_cast>(m, dtype::e2m1x2, 130, 256, 2, 2);
    check_bound(p, p.out_sf, e2m1);
  }
  {
    auto p = cast_of<per_block_cast_with_sf_only>(m, dtype::none, 130, 256, 2, 2);
    p.fmt = "e4m3";
    check_bound(p, p.out_sf, e4m3);
  }
  {
    auto p = cast_of<per_channel_cast>(m, dtype::e4m3, 128, 64, 1, 64);
    check_bound(p, p.out_sf, e4m3);
  }
  {
    auto p = cast_of<per_channel_cast_and_transpose>(m, dtype::e4m3, 128, 64, 1, 64);
    p.out = m.make(dtype::e4m3, {64, 128});
    check_bound(p, p.out_sf, e4m3);
  }
  {
    auto p = cast_of<per_channel_cast_fused>(m, dtype::e4m3, 128, 64, 1, 64);
    check_bound(p, p.out_sf, e4m3);
  }
  {
    swiglu_forward_and_per_channel_cast_and_transpose p;
    p.x = zeros(m, dtype::bf16, {128, 128});
    p.out = m.make(dtype::e4m3, {64, 128});
    p.out_sf = m.make(dtype::f32, {1, 64});
    check_bound(p, p.out_sf, e4m3);
  }
  {
    swiglu_forward_and_per_token_cast p;
    p.num_per_channels = 128;
    p.x = zeros(m, dtype::bf16, {3, 512});
    p.out = m.make(dtype::e4m3, {3, 256});
    p.out_sf = m.make(dtype::f32, {3, 2});
    check_bound(p, p.out_sf, e4m3);
  }
  {
    swiglu_backward_and_per_token_cast p;
    p.num_per_channels = 128;
    p.x = zeros(m, dtype::e4m3, {3, 256});
    p.x_sf = zeros(m, dtype::f32, {3, 2});
    p.out_grad = zeros(m, dtype::bf16, {3, 128});
    p.topk_weights = zeros(m, dtype::f32, {3, 1});
    p.pos_to_token_topk = m.of<std::int32_t>({3}, std::vector<int>{0, 1, 2});
    p.token_topk_to_pos = m.of<std::int32_t>({3, 1}, std::vector<int>{0, 1, 2});
    p.x_grad_fp8 = m.make(dtype::e4m3, {3, 256});
    p.x_grad_fp8_sf = m.make(dtype::f32, {3, 2});
    p.x_grad = m.make(dtype::bf16, {3, 256});
    p.topk_weights_grad = m.make(dtype::f32, {3, 1});
    p.act_out = m.make(dtype::bf16, {3, 128});
    check_bound(p, p.x_grad_fp8_sf, e4m3);
  }
  {
    norm::forward_and_per_token_cast p;
    p.x = zeros(m, dtype::bf16, {3, 96});
    p.out = m.make(dtype::e4m3, {3, 96});
    p.out_sf = m.make(dtype::f32, {3, 3});
    check_bound(p, p.out_sf, e4m3);
  }
  {
    // Scales that stay inside show in the values: 0.3 lies between the codes 0.28125 and 0.3125 of scale 1.
    per_token_cast_and_cast_back p;
    p.x = m.make(dtype::f32, {2, 128});
    p.fmt = "e4m3";
    for (std::int64_t i = 0; i < p.x.numel(); ++i) static_cast<float*>(p.x.data)[i] = 0.3f;
    p.sf_clamp_min = e4m3;
    queue q{cpu_selector};
    run(q, p);
    for (std::int64_t i = 0; i < p.x.numel(); ++i) REQUIRE(static_cast<float*>(p.x.data)[i] == 0.3125f);
    p.sf_clamp_min = -1;
    CHECK(check(p).text().find("sf_clamp_min") != std::string::npos);
    covered.insert(per_token_cast_and_cast_back::name);
  }
  CHECK(m.guards_intact());

  std::set<std::string> have;
  for (const op_info& op : operations())
    for (const field_info& f : op.fields)
      if (f.name == std::string_view("sf_clamp_min")) have.insert(op.name);
  CHECK(have == covered);
}
