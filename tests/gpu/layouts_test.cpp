// Operations that must give the reference's bits, in layouts that the golden cases do not have.
#include "gpu/strided.hpp"

using namespace portile;
using namespace portile::test;

TEST_CASE("transposes: any type, stride and address") {
  for (unsigned seed = 1; seed <= trials(40); ++seed) {
    memory m;
    randomness r(seed);
    const dtype type = r.pick({dtype::u8, dtype::e4m3, dtype::bf16, dtype::f32, dtype::i32});
    const std::int64_t rows = 64 * r.number(0, 5), cols = 64 * r.number(0, 4);
    INFO("seed " << seed);
    if (r.one_in(2)) {
      transpose::transpose p{.x = strided(m, r, type, {rows, cols}, 4),
                             .out = strided(m, r, type, {cols, rows})};
      for (std::int64_t i = 0; i < p.x.span() * size_of(type); ++i)
        static_cast<unsigned char*>(p.x.data)[i] = static_cast<unsigned char>(r.number(0, 255));
      REQUIRE(check(p).text() == "");
      expect_as_reference(p);
    } else {
      const std::int64_t batches = r.number(0, 3);
      transpose::batched p{.x = strided(m, r, type, {batches, rows, cols}, 4),
                           .out = strided(m, r, type, {batches, cols, rows})};
      for (std::int64_t i = 0; i < p.x.span() * size_of(type); ++i)
        static_cast<unsigned char*>(p.x.data)[i] = static_cast<unsigned char>(r.number(0, 255));
      REQUIRE(check(p).text() == "");
      expect_as_reference(p);
    }
    CHECK(m.guards_intact());
  }
}

TEST_CASE("random numbers: any stride and address") {
  for (unsigned seed = 1; seed <= trials(30); ++seed) {
    memory m;
    randomness r(seed);
    INFO("seed " << seed);
    const dtype type = r.pick({dtype::f32, dtype::bf16, dtype::f16, dtype::f64});
    rand::randn p{.out = strided(m, r, type, {r.number(0, 3), r.number(1, 9), r.number(1, 30)}),
                  .seed = r.number(-5, 1000),
                  .offset = r.number(0, 3)};
    if (r.one_in(3)) p.out = m.make(type, {r.number(0, 2000)});
    if (r.one_in(4)) p.out = m.make(type, {7, 5}, {1, 9});
    expect_as_reference(p);
    rand::philox q{.counter = strided(m, r, dtype::u32, {17, 4}),
                   .key = strided(m, r, dtype::u32, {17, 2}),
                   .out = strided(m, r, dtype::u32, {17, 4})};
    expect_as_reference(q);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("rope.apply: heads, strides, positions in and out of the cache") {
  for (unsigned seed = 1; seed <= trials(80); ++seed) {
    memory m;
    randomness r(seed);
    const dtype type = r.pick({dtype::bf16, dtype::bf16, dtype::f32, dtype::f16});
    const std::int64_t tokens = r.number(0, 9), batch = r.number(1, 3),
                       half = r.pick({0, 1, 3, 4, 8, 16, 32});
    const std::int64_t before = r.pick({0, 0, 8, 16, 3}), head = before + 2 * half + r.pick({0, 8, 1});
    const bool batched = r.one_in(2), has_key = r.one_in(2), has_positions = r.one_in(2);
    rope::apply p;
    const auto heads = [&](std::int64_t count) {
      const tensor t = batched ? strided(m, r, type, {batch, tokens, count, head})
                               : strided(m, r, type, {tokens, count, head});
      for (std::int64_t i = 0; i < t.span() * size_of(type) / 2; ++i)
        static_cast<std::uint16_t*>(t.data)[i] = static_cast<std::uint16_t>(r.number(0, 0x7BFF) & 0x3FFF) |
                                                 static_cast<std::uint16_t>(r.number(0, 1) << 15);
      return t;
    };
    p.query = heads(r.number(0, 5));
    if (has_key) p.key = heads(r.number(0, 3));
    p.cos_sin_cache = strided(m, r, dtype::f32, {r.number(tokens ? 1 : 0, 12), 2 * half});
    fill_span(r, p.cos_sin_cache);
    if (has_positions) {
      const dtype index = r.pick({dtype::i32, dtype::i64});
      p.positions = batched ? strided(m, r, index, {batch, tokens}) : strided(m, r, index, {tokens});
      for (std::int64_t i = 0; i < p.positions.span(); ++i) {
        const std::int64_t at = r.number(-1, 12);
        if (index == dtype::i32)
          static_cast<std::int32_t*>(p.positions.data)[i] = static_cast<std::int32_t>(at);
        else
          static_cast<std::int64_t*>(p.positions.data)[i] = at;
      }
    }
    p.rot_offset = before;
    p.interleaved = r.one_in(2);
    p.conjugate = r.one_in(2);
    p.seqlen_offset = r.number(-2, 3);
    INFO("seed " << seed << ": " << p.query.text() << " half " << half);
    REQUIRE(check(p).text() == "");
    expect_as_reference(p);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("engram tables: any width and address, broken data") {
  for (unsigned seed = 1; seed <= trials(60); ++seed) {
    memory m;
    randomness r(seed);
    INFO("seed " << seed);
    const std::int64_t layers = r.number(1, 3), ngram = r.number(1, 4), tables = r.pick({1, 3, 4, 8, 9, 400}),
                       tokens = r.number(0, 30), columns = (ngram - 1) * tables;
    const auto fill_i32 = [&](const tensor& t, std::int64_t low, std::int64_t high) {
      for (std::int64_t i = 0; i < t.span(); ++i)
        static_cast<std::int32_t*>(t.data)[i] = static_cast<std::int32_t>(r.number(low, high));
    };
    engram::hash h;
    h.ngram_token_ids = strided(m, r, dtype::i32, {tokens, ngram});
    fill_i32(h.ngram_token_ids, -0x7fffffff, 0x7fffffff);
    h.multipliers = strided(m, r, dtype::i64, {layers, ngram});
    for (std::int64_t i = 0; i < h.multipliers.span(); ++i)
      static_cast<std::int64_t*>(h.multipliers.data)[i] = r.number(INT64_MIN, INT64_MAX);
    h.vocab_sizes = strided(m, r, dtype::i32, {layers, ngram - 1, tables});
    fill_i32(h.vocab_sizes, r.one_in(3) ? -1 : 1, r.pick<std::int64_t>({1, 3, 1000000, 0x7fffffff}));
    h.offsets = strided(m, r, dtype::i32, {layers, columns});
    fill_i32(h.offsets, 0, r.one_in(3) ? 0x7fffffff : 100000);
    if (r.one_in(2)) {
      h.image_token_mask = m.make(dtype::boolean, {tokens});
      for (std::int64_t i = 0; i < tokens; ++i)
        static_cast<unsigned char*>(h.image_token_mask.data)[i] = r.one_in(4);
    }
    h.out = strided(m, r, dtype::i32, {layers, tokens, columns});
    REQUIRE(check(h).text() == "");
    expect_as_reference(h);

    engram::make_offsets o{.vocab_sizes = h.vocab_sizes,
                           .offsets = strided(m, r, dtype::i32, {layers, columns})};
    expect_as_reference(o);

    engram::gather g;
    const std::int64_t rows = r.number(0, 5), width = r.pick({0, 1, 5, 8, 16, 24});
    g.table = strided(m, r, dtype::bf16, {rows, width});
    g.index = strided(m, r, dtype::i32, {tokens, columns % 7});
    fill_i32(g.index, -2, 5);
    g.out = strided(m, r, dtype::bf16, {tokens, columns % 7 * width});
    fill_span(r, g.table, false);
    REQUIRE(check(g).text() == "");
    expect_as_reference(g);

    engram::fused_weight w;
    w.weight_hidden = strided(m, r, dtype::bf16, {ngram, tables + 5});
    w.weight_embed = strided(m, r, dtype::bf16, {ngram, tables + 5});
    w.weight_fused = strided(m, r, dtype::f32, {ngram, tables + 5});
    fill_span(r, w.weight_hidden);
    fill_span(r, w.weight_embed);
    expect_as_reference(w);

    engram::sinkhorn_momentum_update u;
    const std::int64_t count = r.number(0, 1100);
    u.grad = strided(m, r, r.pick({dtype::f32, dtype::bf16}), {count});
    u.momentum_buffer = strided(m, r, r.pick({dtype::f32, dtype::bf16}), {count});
    u.out = strided(m, r, dtype::f32, {count});
    u.nesterov = r.one_in(2);
    fill_span(r, u.grad);
    fill_span(r, u.momentum_buffer);
    expect_as_reference(u);
    CHECK(m.guards_intact());
  }
}
