#include "gpu/against_reference.hpp"

#include "support/random.hpp"

using namespace portile;
using namespace portile::test;
using moe::topk_gate;

TEST_CASE("moe.topk_gate: random scores give the reference's order") {
  for (unsigned seed = 1; seed <= trials(120); ++seed) {
    memory m;
    randomness r(seed);
    const std::int64_t tokens = r.pick<std::int64_t>({0, 1, 3, 9, 40});
    const std::int64_t experts = r.one_in(3)
                                     ? r.number(1, 70)
                                     : r.pick<std::int64_t>({8, 31, 32, 33, 63, 64, 65, 72, 128, 129, 144,
                                                             255, 256, 257, 384, 512, 513, 700, 1025});
    topk_gate p;
    p.num_topk =
        r.one_in(4) ? std::min<std::int64_t>(experts, 70) : r.number(1, std::min<std::int64_t>(experts, 12));
    tensor whole = m.make(dtype::f32, {tokens * experts + 3});
    p.scores = make_tensor(static_cast<float*>(whole.data) + (r.one_in(2) ? 0 : r.number(1, 3)), dtype::f32,
                           {tokens, experts});
    p.topk_idx = m.make(dtype::i64, {tokens, p.num_topk});
    r.fill(p.scores, r.one_in(2));
    const bool few_values = r.one_in(3);
    for (std::int64_t i = 0; few_values && i < tokens * experts; ++i)
      static_cast<float*>(p.scores.data)[i] =
          r.pick({0.0f, -0.0f, 1.0f, -1.0f, 0x1p-149f, -numeric::infinity()});
    p.require_finite = r.one_in(3);
    INFO("seed " << seed << ": " << p.scores.text() << " num_topk " << p.num_topk);
    REQUIRE(check(p).text() == "");
    expect_as_reference(p);
    CHECK(m.guards_intact());
  }
}
