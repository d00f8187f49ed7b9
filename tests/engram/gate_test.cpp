#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::gate;

namespace {

gate good(memory& m, std::int64_t mult, std::int64_t hidden) {
  gate p;
  p.hidden_states = fill(m.make(dtype::bf16, {5, mult, hidden}), 1);
  p.kv = fill(m.make(dtype::bf16, {5, mult + 1, hidden}), 2);
  p.weight_fused = fill(m.make(dtype::f32, {mult, hidden}), 3);
  p.out = m.make(dtype::bf16, {5, mult, hidden});
  for (tensor* t : {&p.dot, &p.gate_score, &p.rstd_x, &p.rstd_k}) *t = m.make(dtype::f32, {5, mult});
  return p;
}
gate good(memory& m) { return good(m, 3, 40); }

gate without_saving(gate p) {
  for (tensor* t : {&p.dot, &p.gate_score, &p.rstd_x, &p.rstd_k}) *t = {};
  return p;
}

}  // namespace

TEST_CASE("engram.gate refuses bad problems") {
  expect_refusals<gate>(
      [](memory& m) { return good(m); },
      {
          {"hidden_states absent", [](auto& p) { p.hidden_states = {}; },
           "hidden_states = absent: is required"},
          {"dtype of hidden_states", [](auto& p) { p.hidden_states.dtype = dtype::f16; },
           "hidden_states.dtype = f16"},
          {"dtype of weight_fused", [](auto& p) { p.weight_fused.dtype = dtype::i32; },
           "weight_fused.dtype = i32: must be f32"},
          {"no keys", [](auto& p) { p.kv = {}; }, "kv = absent: kv, or k and v, must be given", 1},
          {"kv and k", [](auto& p) { p.k = p.hidden_states; }, "must be absent: kv is given", 1},
          {"kv and v",
           [](auto& p) {
             p.v = make_tensor(p.kv.data, dtype::bf16, {5, 40});
           },
           "must be absent: kv is given", 1},
          {"k without v",
           [](auto& p) {
             p.kv = {};
             p.k = p.hidden_states;
           },
           "must be given together with k", 1},
          {"v without k",
           [](auto& p) {
             p.kv = {};
             p.v = make_tensor(p.hidden_states.data, dtype::bf16, {5, 40});
           },
           "must be given together with v", 1},
          {"rows of kv", [](auto& p) { p.kv.extents[1] = 3; }, "kv.extents[1] = 3: must be mhc_mult + 1 = 4"},
          {"hidden_size of weight_fused", [](auto& p) { p.weight_fused.extents[1] = 39; },
           "weight_fused.extents[1] = 39"},
          {"mask", [](auto& p) { p.image_token_mask = make_tensor(p.kv.data, dtype::boolean, {4}); },
           "image_token_mask.extents[0] = 4"},
          {"shape of dot", [](auto& p) { p.dot.extents[1] = 2; }, "dot.extents[1] = 2: must be mhc_mult = 3"},
          {"clamp_value 0", [](auto& p) { p.clamp_value = 0; }, "clamp_value = 0: must be above 0", 2},
          {"clamp_value negative", [](auto& p) { p.clamp_value = -1; }, "clamp_value = -1: must be above 0",
           2},
          {"clamp_value NaN", [](auto& p) { p.clamp_value = std::nan(""); }, "must be above 0", 2},
          {"clamp_value 0 in fp32", [](auto& p) { p.clamp_value = 1e-60; }, "must be above 0 in fp32", 2},
          {"in place and saving", [](auto& p) { p.out = p.hidden_states; }, "dot = ", 3},
          {"in place and saving one of four",
           [](auto& p) {
             const tensor rstd_k = p.rstd_k;
             p = without_saving(p);
             p.rstd_k = rstd_k;
             p.out = p.hidden_states;
           },
           "rstd_k = ", 3},
          {"in place, other strides",
           [](auto& p) {
             p = without_saving(p);
             p.hidden_states.extents[0] = p.kv.extents[0] = p.out.extents[0] = 1;
             p.out.data = p.hidden_states.data;
             p.out.strides[1] = 41;
           },
           "out.strides"},
          {"stride of kv", [](auto& p) { p.kv.strides[2] = 2; }, "the last stride must be 1"},
      });
}

TEST_CASE("engram.gate: packed, apart, strided, saved, in place: the same bits") {
  queue q{cpu_selector};
  for (const auto& [mult, hidden] : {std::pair{1, 1}, {3, 40}, {4, 129}, {8, 64}}) {
    memory m;
    gate p = good(m, mult, hidden);
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    run(q, p);

    copied<gate> apart(p,
                       0);  // k and v become views of the packed buffer, then copies of their own with gaps
    gate& a = apart.p;
    a.k = a.kv;
    a.k.extents[1] = mult;
    a.v = make_tensor(static_cast<numeric::bf16*>(a.kv.data) + mult * hidden, dtype::bf16, {5, hidden},
                      {(mult + 1) * hidden, 1});
    a.kv = {};
    run(q, a);
    CHECK(first_difference(a.out, p.out) == -1);
    CHECK(first_difference(a.rstd_k, p.rstd_k) == -1);
    expect_layout_freedom(a);

    copied<gate> unsaved(without_saving(p));
    run(q, unsaved.p);
    CHECK(first_difference(unsaved.p.out, p.out) == -1);

    copied<gate> inplace(without_saving(p));
    inplace.p.out = inplace.p.hidden_states;
    run(q, inplace.p);
    CHECK(first_difference(inplace.p.out, p.out) == -1);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("engram.gate passes masked tokens and does not read their keys") {
  memory m;
  gate p = good(m), plain = p;
  queue q{cpu_selector};
  run(q, p);
  p.image_token_mask = m.of<bool>({5}, std::vector<int>{0, 1, 0, 0, 1});
  for (std::int64_t j = 0; j < 4 * 40; ++j) static_cast<numeric::bf16*>(p.kv.data)[4 * 160 + j] = {0x7FC0};
  static_cast<numeric::bf16*>(p.hidden_states.data)[4 * 120] = {0xFFA5};  // copied as it is
  p.out = m.make(dtype::bf16, {5, 3, 40});
  for (tensor* t : {&p.dot, &p.gate_score, &p.rstd_x, &p.rstd_k}) *t = m.make(dtype::f32, {5, 3});
  run(q, p);
  for (std::int64_t t = 0; t < 5; ++t) {
    const bool masked = t == 1 || t == 4;
    const auto* want = static_cast<const char*>(masked ? p.hidden_states.data : plain.out.data) + t * 240;
    CHECK(std::memcmp(static_cast<const char*>(p.out.data) + t * 240, want, 240) == 0);
    for (std::int64_t i = 0; i < 3; ++i) {
      CHECK(at<float>(p.dot, t, i) == (masked ? 0.0f : at<float>(plain.dot, t, i)));
      CHECK(at<float>(p.gate_score, t, i) == (masked ? 0.0f : at<float>(plain.gate_score, t, i)));
      CHECK(at<float>(p.rstd_x, t, i) == (masked ? 0.0f : at<float>(plain.rstd_x, t, i)));
      CHECK(at<float>(p.rstd_k, t, i) == (masked ? 0.0f : at<float>(plain.rstd_k, t, i)));
    }
  }
  p.add_residual = false;
  run(q, p);
  for (std::int64_t j = 0; j < 120; ++j)
    CHECK(static_cast<numeric::bf16*>(p.out.data)[120 + j] == numeric::bf16{0});
  expect_layout_freedom(p);
}

TEST_CASE("engram.gate: the residual is an option, zero scores take their sign") {
  memory m;
  queue q{cpu_selector};
  gate p = good(m, 1, 8);
  p.eps = 1e-20;
  fill(p.hidden_states, 1, 0, 1);  // ones
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t d = 0; d < 8; ++d)
      static_cast<numeric::bf16*>(p.kv.data)[t * 16 + 8 + d] = {0};  // v = 0
  run(q, p);
  for (double v : values(p.out)) CHECK(v == 1);
  p.add_residual = false;
  run(q, p);
  for (double v : values(p.out)) CHECK(v == 0);

  // All-zero keys: s = 0, g = sigmoid(sqrt(clamp)), rstd_k = 1 / sqrt(eps).
  fill(p.kv, 1, 0, 0);
  p.clamp_value = 0.25;
  run(q, p);
  for (std::int64_t t = 0; t < 5; ++t) {
    CHECK(at<float>(p.gate_score, t, 0) == Approx(1 / (1 + std::exp(-0.5))).epsilon(1e-6));
    CHECK(at<float>(p.rstd_k, t, 0) == Approx(1e10).epsilon(1e-6));
    CHECK(at<float>(p.dot, t, 0) == 0);
  }
}

TEST_CASE("engram.gate follows its formula in double precision and ignores the scale of keys") {
  memory m;
  queue q{cpu_selector};
  gate p = good(m, 4, 100);
  p.eps = 1e-20;
  run(q, p);
  const auto x = values(p.hidden_states), kv = values(p.kv), w = values(p.weight_fused);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t i = 0; i < 4; ++i) {
      double xx = 0, kk = 0, dot = 0;
      for (std::int64_t d = 0; d < 100; ++d) {
        const double xd = x[static_cast<std::size_t>((t * 4 + i) * 100 + d)],
                     kd = kv[static_cast<std::size_t>((t * 5 + i) * 100 + d)];
        xx += xd * xd;
        kk += kd * kd;
        dot += xd * kd * w[static_cast<std::size_t>(i * 100 + d)];
      }
      const double rx = 1 / std::sqrt(xx / 100), rk = 1 / std::sqrt(kk / 100), s = dot * rx * rk / 10;
      const double g = 1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::fabs(s), 1e-6)), s)));
      CHECK(at<float>(p.dot, t, i) == Approx(dot).epsilon(1e-6));
      CHECK(at<float>(p.gate_score, t, i) == Approx(g).epsilon(1e-6));
      CHECK(at<float>(p.rstd_x, t, i) == Approx(rx).epsilon(1e-6));
      for (std::int64_t d = 0; d < 100; ++d) {
        const double want = x[static_cast<std::size_t>((t * 4 + i) * 100 + d)] +
                            g * kv[static_cast<std::size_t>((t * 5 + 4) * 100 + d)];
        CHECK(value(p.out, (t * 4 + i) * 100 + d) == Approx(want).epsilon(0.004).margin(1e-6));
      }
    }
  copied<gate> louder(p);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t j = 0; j < 400; ++j) {
      auto& k = static_cast<numeric::bf16*>(louder.p.kv.data)[t * 500 + j];
      k = numeric::to_bf16(numeric::to_float(k) * 1024);
    }
  run(q, louder.p);
  CHECK(first_difference(louder.p.gate_score, p.gate_score) == -1);
  CHECK(first_difference(louder.p.out, p.out) == -1);
}
