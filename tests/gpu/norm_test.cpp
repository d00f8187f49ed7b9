#include "gpu/strided.hpp"

using namespace portile;
using namespace portile::test;

namespace {

const auto near = [](dtype type, double f32_bound) {
  return [=](const std::string& name, const bytes& expected, const bytes& got) {
    if (name == "residual_out") return expected == got;
    const bool f32 = name == "rstd" || (name == "weight_grad" ? false : type == dtype::f32);
    return within(f32 ? dtype::f32 : dtype::bf16, expected, got, f32 ? f32_bound : 0x1p-7, f32 ? 1e-6 : 0);
  };
};

}  // namespace

TEST_CASE("norm.forward: widths, strides, huge and tiny rows; the cast has the same bits") {
  static queue q{gpu()};
  for (unsigned seed = 1; seed <= trials(24); ++seed) {
    memory m;
    randomness r(seed);
    const dtype type = r.pick({dtype::bf16, dtype::f32});
    const bool batched = r.one_in(3), has_residual = r.one_in(2), has_weight = r.one_in(2);
    const std::int64_t batch = r.number(1, 2), tokens = r.number(0, 6),
                       hidden = 32 * r.pick<std::int64_t>({1, 2, 5, 31, 32, 33, 64, 65, 224, 256});
    const float scale = r.pick({1.0f, 1.0f, 1e-30f, 1e25f});
    const auto rows = [&](dtype t, std::int64_t unit = 1) {
      return batched ? strided(m, r, t, {batch, tokens, hidden}, unit)
                     : strided(m, r, t, {tokens, hidden}, unit);
    };
    norm::forward p;
    p.x = rows(type, 16);
    fill_span(r, p.x, true, scale);
    if (has_residual) {
      p.residual = rows(type);
      fill_span(r, p.residual, true, scale);
    }
    if (has_weight) {
      p.weight = m.make(type, {hidden});
      fill_span(r, p.weight);
    }
    p.out = rows(type);
    if (r.one_in(2)) p.residual_out = rows(type);
    p.rstd = batched ? m.make(dtype::f32, {batch, tokens}) : m.make(dtype::f32, {tokens});
    p.eps = r.pick({1e-6, 0.0});
    p.out_scale = r.pick({1.0, 0.5});
    INFO("seed " << seed << ": " << p.x.text());
    REQUIRE(check(p).text() == "");
    expect_as_reference(p, near(type, 4e-6));

    // The codes are those of the cast of this result, on the same device.
    if (batched) continue;
    norm::forward_and_per_token_cast f;
    const dtype codes = r.pick({dtype::e4m3, dtype::e2m1x2});
    f.round_sf = r.one_in(2);
    f.use_packed_ue8m0 = f.round_sf && r.one_in(2);
    f.use_tma_aligned_col_major_sf = r.one_in(2);
    const dtype sf = f.use_packed_ue8m0 ? dtype::ue8m0x4 : dtype::f32;
    const std::int64_t width = stored_extent(sf, hidden / 32),
                       ld = numeric::align_up(std::max<std::int64_t>(tokens, 1), 4);
    f.x = p.x, f.residual = p.residual, f.weight = p.weight, f.eps = p.eps, f.out_scale = p.out_scale;
    f.out = strided(m, r, codes, {tokens, stored_extent(codes, hidden)});
    f.out_sf =
        f.use_tma_aligned_col_major_sf ? m.make(sf, {tokens, width}, {1, ld}) : m.make(sf, {tokens, width});
    REQUIRE(check(f).text() == "");
    quant::per_token_cast c{.x = p.out, .out = m.make(codes, {tokens, stored_extent(codes, hidden)})};
    c.num_per_channels = 32;
    c.round_sf = f.round_sf, c.use_packed_ue8m0 = f.use_packed_ue8m0;
    c.use_tma_aligned_col_major_sf = f.use_tma_aligned_col_major_sf;
    c.out_sf =
        f.use_tma_aligned_col_major_sf ? m.make(sf, {tokens, width}, {1, ld}) : m.make(sf, {tokens, width});
    if (hidden % 64 != 0) continue;
    device_copy<norm::forward> plain(q, p);
    device_copy<norm::forward_and_per_token_cast> fused(q, f);
    device_copy<quant::per_token_cast> cast(q, c);
    run(q, plain.problem());
    quant::per_token_cast second = cast.problem();
    second.x = plain.problem().out;
    run(q, second);
    run(q, fused.problem());
    CHECK(fused.download("out_sf") == cast.download("out_sf"));
    const bytes a = fused.download("out"), b = cast.download("out");
    REQUIRE((a.empty() == b.empty() || tokens == 0));
    const std::int64_t row = stored_extent(codes, hidden);
    for (std::int64_t t = 0; t < tokens; ++t)
      CHECK(std::equal(b.begin() + t * row, b.begin() + (t + 1) * row, a.begin() + t * f.out.stride(0)));
    CHECK(m.guards_intact());
  }
}

TEST_CASE("norm.backward: widths, strides, accumulation") {
  for (unsigned seed = 1; seed <= trials(16); ++seed) {
    memory m;
    randomness r(seed);
    const dtype type = r.pick({dtype::bf16, dtype::f32});
    const std::int64_t tokens = r.pick<std::int64_t>({0, 1, 5, 9}),
                       hidden = 32 * r.pick<std::int64_t>({1, 5, 32, 33, 64, 65, 128, 129, 224, 256});
    norm::backward p;
    const auto rows = [&](std::int64_t unit) {
      const tensor t = strided(m, r, type, {tokens, hidden}, unit);
      fill_span(r, t);
      return t;
    };
    p.out_grad = rows(16), p.x = rows(16), p.x_grad = rows(1);
    if (r.one_in(2)) p.residual_out_grad = rows(16);
    p.rstd = m.make(dtype::f32, {tokens});
    for (std::int64_t i = 0; i < tokens; ++i)
      static_cast<float*>(p.rstd.data)[i] = 0.5f + 0.1f * static_cast<float>(i % 7);
    if (r.one_in(2)) {
      p.weight = m.make(type, {hidden});
      fill_span(r, p.weight);
      p.weight_grad = m.make(r.pick({dtype::f32, dtype::bf16}), {hidden});
      fill_span(r, p.weight_grad);
    }
    p.accumulate = r.one_in(2);
    INFO("seed " << seed << ": " << p.x.text());
    REQUIRE(check(p).text() == "");
    expect_as_reference(p, [&](const std::string& name, const bytes& expected, const bytes& got) {
      const dtype t = name == "weight_grad" ? p.weight_grad.dtype : type;
      return t == dtype::f32 ? within(t, expected, got, 1e-4, 1e-4) : within(t, expected, got, 0x1p-7, 2e-3);
    });
    CHECK(m.guards_intact());
  }
}
