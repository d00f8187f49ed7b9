// What random problems seldom have: many experts, ties, broken ids, too few rows, segments that overlap.
#include "gpu/strided.hpp"

using namespace portile;
using namespace portile::test;

namespace {

tensor ids(memory& m, randomness& r, std::int64_t tokens, std::int64_t k, std::int64_t experts, bool broken) {
  const tensor t = m.make(dtype::i64, {tokens, k});
  for (std::int64_t i = 0; i < tokens * k; ++i)
    static_cast<std::int64_t*>(t.data)[i] =
        broken && r.one_in(20) ? r.number(-3, experts + 3) : r.number(-1, experts - 1);
  return t;
}

tensor flags(memory& m, randomness& r, std::int64_t n, int one_in) {
  const tensor t = m.make(dtype::boolean, {n});
  for (std::int64_t i = 0; i < n; ++i) static_cast<unsigned char*>(t.data)[i] = r.one_in(one_in) ? 0 : 1;
  return t;
}

/// Ids and all else to the bit, real numbers within the gates' bound.
comparison as_gates_agree() {
  return [](const std::string& field, const bytes& expected, const bytes& got) {
    if (field == "topk_weights" || field == "scores") return within(dtype::f32, expected, got, 1e-5, 1e-8);
    return expected == got;
  };
}

/// Logits of few values, so that many tie.
void fill_logits(randomness& r, const tensor& t, bool broken) {
  const bool few = r.one_in(2);
  for (std::int64_t i = 0; i < t.span(); ++i)
    static_cast<float*>(t.data)[i] =
        few ? r.pick({0.0f, -0.0f, 1.0f, -2.5f, 30.0f}) : static_cast<float>(r.number(-4000, 4000)) / 700.0f;
  if (broken && t.span() > 0)
    static_cast<float*>(t.data)[r.number(0, t.span() - 1)] =
        r.pick({numeric::infinity(), -numeric::infinity(), numeric::quiet_nan()});
}

/// Options that both gates have.
template <class P>
void fill_gate(memory& m, randomness& r, P& p, std::int64_t tokens, std::int64_t experts,
               std::int64_t shared) {
  const std::int64_t logical = experts + shared, slots = p.num_topk + shared;
  p.logits = strided(m, r, dtype::f32, {tokens * experts});
  p.logits = make_tensor(p.logits.data, dtype::f32, {tokens, experts});
  fill_logits(r, p.logits, r.one_in(3));
  p.bias = strided(m, r, dtype::f32, {experts});
  fill_logits(r, p.bias, false);
  if (r.one_in(2)) p.mask = flags(m, r, tokens, 4);
  if (r.one_in(2)) {
    p.unmapped_topk_idx = strided(m, r, dtype::i64, {tokens, p.num_topk});
    for (std::int64_t i = 0; i < p.unmapped_topk_idx.span(); ++i)
      static_cast<std::int64_t*>(p.unmapped_topk_idx.data)[i] = r.number(r.one_in(9) ? -1 : 0, experts - 1);
    if (r.one_in(2)) p.fix_routing_mask = flags(m, r, tokens, 2);
  }
  const std::int64_t columns = shared + r.number(1, 3);
  if (shared > 0 || r.one_in(2)) {
    p.to_physical_map = m.make(dtype::i32, {logical, columns});
    p.logical_count = m.make(dtype::i32, {logical});
    for (std::int64_t i = 0; i < logical * columns; ++i)
      static_cast<std::int32_t*>(p.to_physical_map.data)[i] =
          static_cast<std::int32_t>(r.number(-1, logical));
    for (std::int64_t i = 0; i < logical; ++i)
      static_cast<std::int32_t*>(p.logical_count.data)[i] =
          static_cast<std::int32_t>(r.one_in(50) ? r.number(0, columns + 1) : r.number(1, columns));
  }
  p.use_shared_as_routed = shared > 0;
  p.num_shared_experts = shared;
  p.ep_rank = r.number(0, 5);
  p.routed_scaling_factor = 2.5;
  const std::int64_t gap = r.one_in(2) ? 0 : 3;
  p.topk_idx = m.make(dtype::i64, {tokens, slots}, {slots + gap, 1});
  p.topk_weights = m.make(dtype::f32, {tokens, slots}, {slots + gap, 1});
}

}  // namespace

TEST_CASE("moe.get_fused_mapping: many experts, broken ids, too few rows") {
  for (unsigned seed = 1; seed <= trials(40); ++seed) {
    memory m;
    randomness r(seed);
    const std::int64_t experts = r.pick<std::int64_t>({0, 1, 7, 64, 256, 1024, 1025, 2500}),
                       tokens = r.pick<std::int64_t>({0, 1, 5, 300, 1100}), k = r.number(0, 9);
    moe::get_fused_mapping p;
    p.topk_idx = ids(m, r, tokens, k, experts, r.one_in(3));
    p.num_experts = experts;
    p.alignment = r.pick<std::int64_t>({1, 1, 8, 128, 100});
    const std::int64_t worst = tokens * k + (p.alignment - 1) * experts;
    const std::int64_t rows = r.one_in(3) ? r.number(0, tokens * k) : worst + r.number(0, 300);
    p.pos_to_expert = strided(m, r, dtype::i32, {rows});
    p.pos_to_token = strided(m, r, dtype::i32, {rows});
    p.pos_to_token_topk = strided(m, r, dtype::i32, {rows});
    p.token_topk_to_pos = strided(m, r, dtype::i32, {tokens, k});
    p.expert_start = strided(m, r, dtype::i32, {experts});
    p.expert_end = strided(m, r, dtype::i32, {experts});
    p.num_tokens_per_expert = strided(m, r, dtype::i32, {experts});
    if (r.one_in(2)) p.num_live_per_expert = strided(m, r, dtype::i32, {experts});
    if (r.one_in(2)) p.num_tokens_per_expert_list = m.make(dtype::i64, {experts});
    INFO("seed " << seed << ": " << tokens << " tokens, " << k << " slots, " << experts << " experts, "
                 << rows << " rows");
    REQUIRE(check(p).text() == "");
    expect_as_reference(p);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("moe.top2_sum_gate: any number of experts, groups, ties, broken data") {
  for (unsigned seed = 1; seed <= trials(60); ++seed) {
    memory m;
    randomness r(seed);
    moe::top2_sum_gate p;
    std::int64_t experts = r.pick<std::int64_t>({4, 12, 64, 132, 256, 384, 512, 516, 1024, 3200});
    const std::int64_t shared = r.one_in(3) ? r.number(1, 2) : 0;
    p.num_topk =
        shared ? shared * r.pick<std::int64_t>({1, 2, 4}) : r.number(1, std::min<std::int64_t>(experts, 12));
    if (shared && p.num_topk > experts) continue;
    if (r.one_in(2)) {
      p.num_groups = r.pick<std::int64_t>({2, 4, 8, 12, 32});
      experts = p.num_groups * 4 * r.number(1, 8);
      p.num_topk_groups = r.number(1, p.num_groups);
      if (p.num_topk > p.num_topk_groups * (experts / p.num_groups)) p.num_topk = shared ? shared : 1;
    }
    fill_gate(m, r, p, r.pick<std::int64_t>({0, 1, 9}), experts, shared);
    p.scoring_func = r.pick({"sigmoid", "sqrtsoftplus", "softmax"});
    p.num_tp_ranks = r.number(1, 3);
    p.tp_rank = p.num_tp_ranks - 1;
    INFO("seed " << seed << ": " << experts << " experts, k " << p.num_topk << ", shared " << shared
                 << ", groups " << p.num_topk_groups << " of " << p.num_groups);
    REQUIRE(check(p).text() == "");
    expect_as_reference(p, as_gates_agree());
    CHECK(m.guards_intact());
  }
}

TEST_CASE("moe.moe_topk_gate_forward: any number of experts, random routes, ties, broken data") {
  for (unsigned seed = 1; seed <= trials(60); ++seed) {
    memory m;
    randomness r(seed);
    moe::moe_topk_gate_forward p;
    const std::int64_t experts = r.pick<std::int64_t>({4, 12, 64, 128, 132, 256, 384, 512, 516, 1028, 3200}),
                       tokens = r.pick<std::int64_t>({0, 1, 9}), shared = r.one_in(3) ? r.number(1, 2) : 0;
    p.num_topk =
        r.one_in(6) ? std::min<std::int64_t>(experts, 30) : r.number(1, std::min<std::int64_t>(experts, 9));
    fill_gate(m, r, p, tokens, experts, shared);
    if (r.one_in(3)) p.bias = {};
    if (r.one_in(2)) {
      p.image_token_mask = flags(m, r, tokens, 2);
      p.image_bias = m.make(dtype::f32, {experts});
      fill_logits(r, p.image_bias, false);
    }
    if (r.one_in(2)) p.force_random = flags(m, r, tokens, 2);
    if (r.one_in(2)) p.scores = m.make(dtype::f32, {tokens, experts});
    p.topk_idx = m.make(dtype::i64, {tokens, p.num_topk + shared});
    p.topk_weights = m.make(dtype::f32, {tokens, p.num_topk + shared});
    INFO("seed " << seed << ": " << experts << " experts, k " << p.num_topk << ", shared " << shared);
    REQUIRE(check(p).text() == "");
    expect_as_reference(p, as_gates_agree());
    CHECK(m.guards_intact());
  }
}
