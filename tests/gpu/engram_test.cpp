// Operations of engram with a bound, in layouts that the golden cases do not have.
#include "gpu/strided.hpp"

using namespace portile;
using namespace portile::test;

namespace {

tensor filled(memory& m, randomness& r, dtype type, std::vector<std::int64_t> extents, float scale = 1) {
  const tensor t = strided(m, r, type, std::move(extents));
  fill_span(r, t, true, scale);
  return t;
}
comparison bound(dtype type, double relative, double absolute) {
  return [=](const std::string&, const bytes& expected, const bytes& got) {
    return within(type, expected, got, relative, absolute);
  };
}

}  // namespace

TEST_CASE("engram sums over partial rows") {
  for (unsigned seed = 1; seed <= trials(10); ++seed) {
    memory m;
    randomness r(seed);
    INFO("seed " << seed);
    const std::int64_t rows = r.pick<std::int64_t>({0, 1, 7, 63, 64, 65, 300}), mult = r.number(1, 3),
                       width = r.pick<std::int64_t>({1, 6, 32, 100, 256, 1030});
    engram::grad_w_reduce g;
    g.weight_fused_grad_partial = filled(m, r, dtype::f32, {rows, mult, width});
    g.weight_hidden = filled(m, r, dtype::bf16, {mult, width});
    g.weight_embed = filled(m, r, dtype::bf16, {mult, width});
    g.weight_hidden_grad = filled(m, r, dtype::f32, {mult, width});
    g.weight_embed_grad = filled(m, r, dtype::f32, {mult, width});
    g.accumulate = r.one_in(2);
    expect_as_reference(g, bound(dtype::f32, 1e-5, 1e-3));
    engram::sinkhorn_col_update u;
    u.col_sumsq_partial = filled(m, r, dtype::f32, {rows, width});
    for (std::int64_t i = 0; i < u.col_sumsq_partial.span(); ++i)
      static_cast<float*>(u.col_sumsq_partial.data)[i] *= static_cast<float*>(u.col_sumsq_partial.data)[i];
    u.col_scale = filled(m, r, dtype::f32, {width});
    if (r.one_in(2)) u.col_sumsq = filled(m, r, dtype::f32, {width});
    u.ratio = r.pick({0.0, 1.0, 0.25});
    expect_as_reference(u, bound(dtype::f32, 1e-6, 0));
    if (width % 256 != 0) continue;
    engram::sinkhorn_step_reduce s{.col_sumsq_partial = u.col_sumsq_partial,
                                   .col_sumsq = filled(m, r, dtype::f32, {width})};
    expect_as_reference(s, bound(dtype::f32, 1e-6, 0));
    CHECK(m.guards_intact());
  }
}

TEST_CASE("engram.sinkhorn_step and finalize: widths, alignments, tiny, huge and zero rows") {
  for (unsigned seed = 1; seed <= trials(18); ++seed) {
    memory m;
    randomness r(seed);
    const std::int64_t rows = r.pick<std::int64_t>({0, 1, 5, 40}),
                       width = 256 * r.pick<std::int64_t>({1, 2, 3, 4, 5, 9, 17, 20, 25, 33});
    INFO("seed " << seed << ": " << rows << " x " << width);
    const float scale = r.pick({1.0f, 1e-28f, 1e30f});
    engram::sinkhorn_step s;
    s.matrix = filled(m, r, dtype::f32, {rows, width}, scale);
    for (std::int64_t n = 0; n < rows; ++n)
      for (std::int64_t d = 0; n % 5 == 3 && d < width; ++d)
        static_cast<float*>(s.matrix.data)[n * s.matrix.stride(0) + d] = 0;
    s.col_scale = filled(m, r, dtype::f32, {width});
    s.row_scale = filled(m, r, dtype::f32, {rows});
    s.row_norm = filled(m, r, dtype::f32, {rows});
    s.col_sumsq = filled(m, r, dtype::f32, {width});
    REQUIRE(check(s).text() == "");
    engram::sinkhorn_finalize f;
    f.matrix = s.matrix, f.row_scale = s.row_scale, f.col_scale = s.col_scale;
    f.out = filled(m, r, dtype::f32, {rows, width});
    f.alpha = 3;
    if (r.one_in(3)) {
      const std::int64_t narrow = std::min(width, r.number(1, 900));
      f.matrix.extents[1] = narrow, f.col_scale.extents[0] = narrow, f.out.extents[1] = narrow;
    }
    REQUIRE(check(f).text() == "");
    expect_as_reference(f, bound(dtype::f32, 1.3e-6, 0));
    expect_as_reference(s, bound(dtype::f32, 1.3e-6, 0));
    CHECK(m.guards_intact());
  }
}

TEST_CASE("engram.gate and its gradient: forms, widths, alignments, masks") {
  for (unsigned seed = 1; seed <= trials(10); ++seed) {
    memory m;
    randomness r(seed);
    const std::int64_t tokens = r.pick<std::int64_t>({0, 1, 3, 7}), mult = r.number(1, 4),
                       width = r.pick<std::int64_t>({1, 7, 8, 128, 200, 1024, 1032, 2056, 4104, 8200});
    INFO("seed " << seed << ": " << tokens << " x " << mult << " x " << width);
    const bool packed = r.one_in(2), masked = r.one_in(2);
    engram::gate p;
    p.hidden_states = filled(m, r, dtype::bf16, {tokens, mult, width});
    if (packed) {
      p.kv = filled(m, r, dtype::bf16, {tokens, mult + 1, width});
    } else {
      p.k = filled(m, r, dtype::bf16, {tokens, mult, width});
      p.v = filled(m, r, dtype::bf16, {tokens, width});
    }
    p.weight_fused = filled(m, r, dtype::f32, {mult, width});
    if (masked) {
      p.image_token_mask = m.make(dtype::boolean, {tokens});
      for (std::int64_t i = 0; i < tokens; ++i)
        static_cast<unsigned char*>(p.image_token_mask.data)[i] = r.one_in(3);
    }
    p.out = filled(m, r, dtype::bf16, {tokens, mult, width});
    for (tensor* t : {&p.dot, &p.gate_score, &p.rstd_x, &p.rstd_k})
      *t = strided(m, r, dtype::f32, {tokens, mult});
    p.add_residual = r.one_in(2);
    REQUIRE(check(p).text() == "");
    expect_as_reference(p, [&](const std::string& name, const bytes& expected, const bytes& got) {
      return name == "out" ? within(dtype::bf16, expected, got, 0x1p-7, 1e-4)
                           : within(dtype::f32, expected, got, 2e-5, name == "dot" ? 2e-2 : 2e-3);
    });

    engram::gate_backward b;
    b.out_grad = filled(m, r, dtype::bf16, {tokens, mult, width});
    b.hidden_states = p.hidden_states, b.kv = p.kv, b.k = p.k, b.v = p.v, b.weight_fused = p.weight_fused;
    b.dot = p.dot, b.gate_score = p.gate_score, b.rstd_x = p.rstd_x, b.rstd_k = p.rstd_k;
    b.image_token_mask = p.image_token_mask, b.add_residual = p.add_residual;
    b.hidden_states_grad = filled(m, r, dtype::bf16, {tokens, mult, width});
    if (packed) {
      b.kv_grad = filled(m, r, dtype::bf16, {tokens, mult + 1, width});
    } else {
      b.k_grad = filled(m, r, dtype::bf16, {tokens, mult, width});
      b.v_grad = filled(m, r, dtype::bf16, {tokens, width});
    }
    b.weight_fused_grad = filled(m, r, dtype::f32, {mult, width});
    b.accumulate = r.one_in(2);
    REQUIRE(check(b).text() == "");
    expect_as_reference(b, [&](const std::string& name, const bytes& expected, const bytes& got) {
      return name == "weight_fused_grad" ? within(dtype::f32, expected, got, 1e-5, 1e-4)
                                         : within(dtype::bf16, expected, got, 0x1p-7, 1e-4);
    });
    CHECK(m.guards_intact());
  }
}
