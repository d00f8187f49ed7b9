// The composites: that they are their steps, bit for bit, and what they refuse.
#include <portile/core/numeric/bf16.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using chain::engram_gate_fn;
using chain::mhc_block;
using chain::mhc_head;

namespace {

bool equal(const tensor& a, const tensor& b) {
  return a.numel() == b.numel() &&
         std::memcmp(a.data, b.data, static_cast<std::size_t>(a.numel() * size_of(a.dtype))) == 0;
}
tensor copy_of(memory& m, const tensor& t) {
  tensor r =
      m.make(t.dtype, std::span<const std::int64_t>(t.extents.data(), static_cast<std::size_t>(t.rank)),
             std::span<const std::int64_t>(t.strides.data(), static_cast<std::size_t>(t.rank)));
  std::memcpy(r.data, t.data, static_cast<std::size_t>(t.span() * size_of(t.dtype)));
  return r;
}
tensor normal(memory& m, dtype type, std::initializer_list<std::int64_t> extents, unsigned seed) {
  tensor t = m.make(type, extents);
  fill_normal(t, seed);
  return t;
}

mhc_block block_of(memory& m, std::int64_t tokens, std::int64_t mult, std::int64_t hidden) {
  mhc_block p;
  const std::int64_t mixes = mult * (mult + 2), k = mult * hidden;
  p.residual = normal(m, dtype::bf16, {tokens, mult, hidden}, 1);
  p.fn = normal(m, dtype::f32, {mixes, k}, 2);
  p.norm_weight = normal(m, dtype::f32, {k}, 3);
  p.scale = normal(m, dtype::f32, {3}, 4);
  p.base = normal(m, dtype::f32, {mixes}, 5);
  p.layer_weight = normal(m, dtype::f32, {hidden}, 6);
  p.out_grad = normal(m, dtype::bf16, {tokens, mult, hidden}, 7);
  p.layer_input = m.make(dtype::bf16, {tokens, hidden});
  p.post_mix = m.make(dtype::f32, {tokens, mult});
  p.comb_mix = m.make(dtype::f32, {tokens, mult, mult});
  p.out = m.make(dtype::bf16, {tokens, mult, hidden});
  p.residual_grad = m.make(dtype::bf16, {tokens, mult, hidden});
  p.fn_grad = m.make(dtype::f32, {mixes, k});
  p.norm_weight_grad = m.make(dtype::f32, {k});
  p.scale_grad = m.make(dtype::f32, {3});
  p.base_grad = m.make(dtype::f32, {mixes});
  return p;
}
mhc_block good_block(memory& m) { return block_of(m, 3, 4, 16); }

mhc_head head_of(memory& m, std::int64_t tokens, std::int64_t mult, std::int64_t hidden) {
  mhc_head p;
  p.residual = normal(m, dtype::bf16, {tokens, mult, hidden}, 1);
  p.fn = normal(m, dtype::f32, {mult, mult * hidden}, 2);
  p.norm_weight = normal(m, dtype::f32, {mult * hidden}, 3);
  p.scale = normal(m, dtype::f32, {1}, 4);
  p.base = normal(m, dtype::f32, {mult}, 5);
  p.out_grad = normal(m, dtype::bf16, {tokens, hidden}, 6);
  p.out = m.make(dtype::bf16, {tokens, hidden});
  p.residual_grad = m.make(dtype::bf16, {tokens, mult, hidden});
  p.fn_grad = m.make(dtype::f32, {mult, mult * hidden});
  p.norm_weight_grad = m.make(dtype::f32, {mult * hidden});
  p.scale_grad = m.make(dtype::f32, {1});
  p.base_grad = m.make(dtype::f32, {mult});
  return p;
}
mhc_head good_head(memory& m) { return head_of(m, 3, 4, 16); }

engram_gate_fn good_gate(memory& m) {
  engram_gate_fn p;
  p.hidden_states = normal(m, dtype::bf16, {2, 3, 4, 32}, 1);
  p.kv = normal(m, dtype::bf16, {2, 3, 160}, 2);
  p.weight_hidden = normal(m, dtype::bf16, {4, 32}, 3);
  p.weight_embed = normal(m, dtype::bf16, {4, 32}, 4);
  p.out_grad = normal(m, dtype::bf16, {2, 3, 4, 32}, 5);
  p.out = m.make(dtype::bf16, {2, 3, 4, 32});
  p.hidden_states_grad = m.make(dtype::bf16, {2, 3, 4, 32});
  p.kv_grad = m.make(dtype::bf16, {2, 3, 160});
  p.weight_hidden_grad = m.make(dtype::f32, {4, 32});
  p.weight_embed_grad = m.make(dtype::f32, {4, 32});
  return p;
}

}  // namespace

TEST_CASE("chain.mhc_block refuses bad problems") {
  memory other;  // of the problems that differ in every tensor
  expect_refusals<mhc_block>(
      good_block,
      {
          {"residual absent", [](auto& p) { p.residual = {}; }, "residual = absent: is required"},
          {"layer_weight absent", [](auto& p) { p.layer_weight = {}; }, "layer_weight = absent: is required"},
          {"rows of fn", [](auto& p) { p.fn.extents[0] = 23; }, "fn.extents[0] = 23"},
          {"hidden_size", [&](auto& p) { p = block_of(other, 3, 4, 12); },
           "hidden_size = 12: must be a positive multiple of 8", 1},
          {"mhc_mult 0", [&](auto& p) { p = block_of(other, 3, 0, 16); }, "mhc_mult = 0: must be at least 1",
           2},
          {"mhc_mult 9", [&](auto& p) { p = block_of(other, 3, 9, 16); }, "mhc_mult = 9: must be at most 8",
           2},
          {"repeat", [](auto& p) { p.sinkhorn_repeat = 0; }, "sinkhorn_repeat = 0: must be at least 1", 3},
          {"too many repeats", [](auto& p) { p.sinkhorn_repeat = 65537; },
           "sinkhorn_repeat = 65537: must be at most 65536", 3},
          {"splits", [](auto& p) { p.n_splits = 0; }, "n_splits = 0: must be at least 1", 3},
          {"in place", [](auto& p) { p.out.data = p.residual.data; }, "must not be the buffer of residual"},
          {"gradients without out_grad", [](auto& p) { p.out_grad = {}; }, "needs out_grad", 4},
          {"norm_weight_grad without norm_weight", [](auto& p) { p.norm_weight = {}; }, "needs norm_weight",
           4},
          {"scale_grad alone", [](auto& p) { p.base_grad = {}; }, "must be given together with scale_grad",
           4},
          {"residual_grad in place", [](auto& p) { p.residual_grad.data = p.out_grad.data; },
           "must not be the buffer of out_grad"},
          {"strided layer_input", [](auto& p) { p.layer_input.strides[0] = 24; }, "must be contiguous"},
      });
}

TEST_CASE("chain.mhc_head refuses bad problems") {
  memory other;
  expect_refusals<mhc_head>(
      good_head,
      {
          {"fn absent", [](auto& p) { p.fn = {}; }, "fn = absent: is required"},
          {"rows of fn", [](auto& p) { p.fn.extents[0] = 3; }, "fn.extents[0] = 3"},
          {"hidden_size", [&](auto& p) { p = head_of(other, 3, 4, 12); },
           "hidden_size = 12: must be a positive multiple of 8", 1},
          {"mhc_mult 0", [&](auto& p) { p = head_of(other, 3, 0, 16); }, "mhc_mult = 0: must be at least 1",
           2},
          {"mhc_mult 9", [&](auto& p) { p = head_of(other, 3, 9, 16); }, "mhc_mult = 9: must be at most 8",
           2},
          {"splits", [](auto& p) { p.n_splits = 0; }, "n_splits = 0: must be at least 1", 3},
          {"gradients without out_grad", [](auto& p) { p.out_grad = {}; }, "needs out_grad", 4},
          {"base_grad alone", [](auto& p) { p.scale_grad = {}; }, "must be given together with base_grad", 4},
          {"norm_weight_grad without norm_weight", [](auto& p) { p.norm_weight = {}; }, "needs norm_weight",
           4},
      });
}

TEST_CASE("chain.engram_gate_fn refuses bad problems") {
  expect_refusals<engram_gate_fn>(
      good_gate,
      {
          {"no keys", [](auto& p) { p.kv = {}; }, "must be given", 1},
          {"both forms", [](auto& p) { p.k = p.hidden_states; }, "must be absent: kv is given", 1},
          {"tokens of kv", [](auto& p) { p.kv.extents[1] = 2; },
           "kv.extents[1] = 2: must be 3, as in hidden_states", 2},
          {"dimensions of kv",
           [](auto& p) {
             p.kv.rank = 2;
             p.kv.extents = {6, 160};
             p.kv.strides = {160, 1};
           },
           "kv.rank = 2: must be 3", 2},
          {"tokens without a common stride", [](auto& p) { p.hidden_states.strides[0] = 512; },
           "must have one common stride", 2},
          {"clamp_value", [](auto& p) { p.clamp_value = 0; }, "clamp_value = 0: must be above 0"},
          {"gradients without out_grad", [](auto& p) { p.out_grad = {}; }, "needs out_grad", 3},
          {"weight_hidden_grad alone", [](auto& p) { p.weight_embed_grad = {}; },
           "must be given together with weight_hidden_grad", 3},
          {"one buffer for both", [](auto& p) { p.weight_embed_grad.data = p.weight_hidden_grad.data; },
           "must not be the buffer of weight_hidden_grad", 3},
          {"k_grad of packed keys", [](auto& p) { p.k_grad = p.hidden_states_grad; }, "k_grad", 1},
          {"in place with gradients", [](auto& p) { p.out.data = p.hidden_states.data; },
           "the gradients need the original"},
      });
}

TEST_CASE("chain.mhc_block is mhc.pre, the layer, mhc.post") {
  memory m;
  const mhc_block p = block_of(m, 5, 4, 64);
  queue q{cpu_selector};
  run(q, p);
  mhc::pre pre;
  pre.residual = p.residual;
  pre.fn = p.fn;
  pre.norm_weight = p.norm_weight;
  pre.scale = p.scale;
  pre.base = p.base;
  pre.post_mix = m.make(dtype::f32, {5, 4});
  pre.comb_mix = m.make(dtype::f32, {5, 4, 4});
  pre.layer_input = m.make(dtype::bf16, {5, 64});
  run(q, pre);
  CHECK(equal(pre.post_mix, p.post_mix));
  CHECK(equal(pre.comb_mix, p.comb_mix));
  CHECK(equal(pre.layer_input, p.layer_input));
  mhc::post post;
  post.x = m.make(dtype::bf16, {5, 64});
  for (std::int64_t i = 0; i < 5 * 64; ++i)
    at<numeric::bf16>(post.x, i / 64, i % 64) =
        numeric::to_bf16(numeric::to_float(at<numeric::bf16>(p.layer_input, i / 64, i % 64)) *
                         at<float>(p.layer_weight, i % 64));
  post.residual = p.residual;
  post.post_mix = p.post_mix;
  post.comb_mix = p.comb_mix;
  post.out = m.make(dtype::bf16, {5, 4, 64});
  run(q, post);
  CHECK(equal(post.out, p.out));
  CHECK(m.guards_intact());
}

TEST_CASE("chains give the same bits whatever is asked for, and add where told to") {
  memory m;
  queue q{cpu_selector};
  const auto accumulates = [&](const tensor& once, const tensor& twice) {
    for (std::int64_t i = 0; i < once.numel(); ++i) {
      const float a = static_cast<float*>(once.data)[i], b = static_cast<float*>(twice.data)[i];
      if (!(std::abs(b - 2 * a) <= 1e-5f * (1 + std::abs(a)))) return false;
    }
    return true;
  };
  const mhc_block p = block_of(m, 4, 4, 32);
  run(q, p);
  mhc_block lean = p;
  lean.layer_input = lean.post_mix = lean.comb_mix = lean.scale_grad = lean.base_grad = lean.fn_grad =
      lean.norm_weight_grad = {};
  lean.out = m.make(dtype::bf16, {4, 4, 32});
  lean.residual_grad = m.make(dtype::bf16, {4, 4, 32});
  run(q, lean);
  CHECK(equal(lean.out, p.out));
  CHECK(equal(lean.residual_grad, p.residual_grad));
  mhc_block added = p;
  added.accumulate = true;
  added.residual_grad = m.make(dtype::bf16, {4, 4, 32});
  added.fn_grad = copy_of(m, p.fn_grad);
  added.norm_weight_grad = copy_of(m, p.norm_weight_grad);
  added.scale_grad = copy_of(m, p.scale_grad);
  added.base_grad = copy_of(m, p.base_grad);
  run(q, added);
  CHECK(equal(added.residual_grad, p.residual_grad));
  CHECK(accumulates(p.fn_grad, added.fn_grad));
  CHECK(accumulates(p.norm_weight_grad, added.norm_weight_grad));
  CHECK(accumulates(p.scale_grad, added.scale_grad));
  CHECK(accumulates(p.base_grad, added.base_grad));

  const mhc_head h = head_of(m, 4, 4, 32);
  run(q, h);
  mhc_head forward = h;
  forward.out_grad = forward.residual_grad = forward.fn_grad = forward.norm_weight_grad = forward.scale_grad =
      forward.base_grad = {};
  forward.out = m.make(dtype::bf16, {4, 32});
  run(q, forward);
  CHECK(equal(forward.out, h.out));
  CHECK(m.guards_intact());
}

TEST_CASE("chain.engram_gate_fn: forms, token dimensions and strides do not change a bit") {
  memory m;
  queue q{cpu_selector};
  const engram_gate_fn p = good_gate(m);
  run(q, p);

  engram_gate_fn apart = p;
  apart.kv = apart.kv_grad = {};
  apart.k = m.make(dtype::bf16, {6, 4, 32});
  apart.v = m.make(dtype::bf16, {6, 32});
  for (std::int64_t t = 0; t < 6; ++t) {
    std::memcpy(static_cast<char*>(apart.k.data) + t * 256, static_cast<char*>(p.kv.data) + t * 320, 256);
    std::memcpy(static_cast<char*>(apart.v.data) + t * 64, static_cast<char*>(p.kv.data) + t * 320 + 256, 64);
  }
  const auto as_rows = [](tensor t) {
    t.rank = 3;
    t.extents = {6, 4, 32};
    t.strides = {128, 32, 1};
    return t;
  };
  apart.hidden_states = as_rows(p.hidden_states);
  apart.out_grad = as_rows(p.out_grad);
  apart.out = m.make(dtype::bf16, {6, 4, 32});
  apart.hidden_states_grad = m.make(dtype::bf16, {6, 4, 32});
  apart.k_grad = m.make(dtype::bf16, {6, 4, 32}, {160, 32, 1});
  apart.v_grad = m.make(dtype::bf16, {6, 32});
  apart.weight_hidden_grad = m.make(dtype::f32, {4, 32});
  apart.weight_embed_grad = m.make(dtype::f32, {4, 32});
  run(q, apart);
  CHECK(equal(apart.out, p.out));
  CHECK(equal(apart.hidden_states_grad, p.hidden_states_grad));
  CHECK(equal(apart.weight_hidden_grad, p.weight_hidden_grad));
  CHECK(equal(apart.weight_embed_grad, p.weight_embed_grad));
  for (std::int64_t t = 0; t < 6; ++t) {
    CHECK(std::memcmp(static_cast<char*>(apart.k_grad.data) + t * 320,
                      static_cast<char*>(p.kv_grad.data) + t * 320, 256) == 0);
    CHECK(std::memcmp(static_cast<char*>(apart.v_grad.data) + t * 64,
                      static_cast<char*>(p.kv_grad.data) + t * 320 + 256, 64) == 0);
  }
  CHECK(m.guards_intact());
}

TEST_CASE("chain.engram_gate_fn: one row for all tokens, by a stride of 0") {
  memory m;
  queue q{cpu_selector};
  engram_gate_fn p;
  {
    const engram_gate_fn whole = good_gate(m);
    p.weight_hidden = whole.weight_hidden;
    p.weight_embed = whole.weight_embed;
    p.kv = m.make(dtype::bf16, {6, 160});
    std::memcpy(p.kv.data, whole.kv.data, 6 * 160 * 2);
    p.hidden_states = m.make(dtype::bf16, {6, 4, 32});
    for (std::int64_t t = 0; t < 6; ++t)
      std::memcpy(static_cast<char*>(p.hidden_states.data) + t * 256, whole.hidden_states.data, 256);
  }
  p.out = m.make(dtype::bf16, {6, 4, 32});
  run(q, p);
  engram_gate_fn repeated = p;
  repeated.hidden_states.strides = {0, 32, 1};
  repeated.out = m.make(dtype::bf16, {6, 4, 32});
  // What lies behind the one row must not be read.
  std::memset(static_cast<char*>(p.hidden_states.data) + 256, 0xFF, 5 * 256);
  run(q, repeated);
  CHECK(equal(repeated.out, p.out));
}

TEST_CASE("chains without tokens") {
  queue q{cpu_selector};
  memory m;
  const mhc_block b = block_of(m, 0, 4, 16);
  CHECK_NOTHROW(run(q, b));
  for (std::int64_t i = 0; i < b.fn_grad.numel(); ++i) REQUIRE(static_cast<float*>(b.fn_grad.data)[i] == 0);
  CHECK_NOTHROW(run(q, head_of(m, 0, 2, 8)));
}

TEST_CASE("composites are explained by their steps, and keep to their workspace") {
  memory m;
  const mhc_block p = good_block(m);
  queue q{cpu_selector};
  const explanation e = explain(q, p);
  CHECK(e.chosen == "composite");
  REQUIRE(e.candidates.size() == 1);
  CHECK(e.candidates[0].backend == "portile");
  CHECK(e.candidates[0].reason.find("mhc.block_backward (reference)") != std::string::npos);
  CHECK(e.text().find("mhc.sinkhorn (reference)") != std::string::npos);

  portile_device_info model{};
  REQUIRE(device_model("gfx90a", model));
  any_problem any(get_operation("chain.mhc_block"));
  any.op().assign(any.get(), &p);
  const explanation elsewhere = explain(model, any);
  CHECK(elsewhere.chosen.empty());
  CHECK(elsewhere.candidates[0].reason.find("mhc.pre_norm_fn") != std::string::npos);

  plan planned(q, p);
  CHECK(planned.implementation() == "composite");
  CHECK(planned.backend() == "portile");
  std::vector<unsigned char> bytes(planned.workspace_bytes() + 1024, 0x5A);
  unsigned char* workspace = bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256);
  run(q, p, run_options{.workspace = workspace, .workspace_bytes = planned.workspace_bytes()});
  for (unsigned char* c = workspace + planned.workspace_bytes(); c != bytes.data() + bytes.size(); ++c)
    REQUIRE(*c == 0x5A);
  const tensor first = copy_of(m, p.residual_grad);
  planned.run(p);
  CHECK(equal(first, p.residual_grad));
  CHECK_THROWS_AS(
      run(q, p, run_options{.workspace = workspace, .workspace_bytes = planned.workspace_bytes() - 1}),
      error);
}
