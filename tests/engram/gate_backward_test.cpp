#include <cmath>

#include <portile/portile.hpp>

#include "support/gradients.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::gate;
using engram::gate_backward;

namespace {

// A forward problem, run, and the backward one over what it saved.
gate_backward good(memory& m, std::int64_t tokens, std::int64_t mult, std::int64_t hidden, double clamp,
                   const std::vector<int>& mask = {}, bool add_residual = true) {
  gate f;
  f.hidden_states = fill(m.make(dtype::bf16, {tokens, mult, hidden}), 1);
  f.kv = fill(m.make(dtype::bf16, {tokens, mult + 1, hidden}), 2);
  f.weight_fused = fill(m.make(dtype::f32, {mult, hidden}), 3);
  f.out = m.make(dtype::bf16, {tokens, mult, hidden});
  for (tensor* t : {&f.dot, &f.gate_score, &f.rstd_x, &f.rstd_k}) *t = m.make(dtype::f32, {tokens, mult});
  if (!mask.empty()) f.image_token_mask = m.of<bool>({tokens}, mask);
  f.clamp_value = clamp;
  f.add_residual = add_residual;
  queue q{cpu_selector};
  run(q, f);
  gate_backward p;
  p.out_grad = fill(m.make(dtype::bf16, {tokens, mult, hidden}), 4);
  p.hidden_states = f.hidden_states;
  p.kv = f.kv;
  p.weight_fused = f.weight_fused;
  p.image_token_mask = f.image_token_mask;
  p.dot = f.dot;
  p.gate_score = f.gate_score;
  p.rstd_x = f.rstd_x;
  p.rstd_k = f.rstd_k;
  p.hidden_states_grad = m.make(dtype::bf16, {tokens, mult, hidden});
  p.kv_grad = m.make(dtype::bf16, {tokens, mult + 1, hidden});
  p.weight_fused_grad = m.make(dtype::f32, {mult, hidden});
  p.clamp_value = clamp;
  p.add_residual = add_residual;
  return p;
}
gate_backward good(memory& m) { return good(m, 5, 3, 12, 1e-6); }

}  // namespace

TEST_CASE("engram.gate_backward refuses bad problems") {
  expect_refusals<gate_backward>(
      [](memory& m) { return good(m); },
      {
          {"out_grad absent", [](auto& p) { p.out_grad = {}; }, "out_grad = absent: is required"},
          {"dot absent", [](auto& p) { p.dot = {}; }, "dot = absent: is required"},
          {"dtype of kv", [](auto& p) { p.kv.dtype = dtype::f16; }, "kv.dtype = f16: must be bf16"},
          {"no keys", [](auto& p) { p.kv = {}; }, "kv = absent: kv, or k and v, must be given", 1},
          {"kv and k", [](auto& p) { p.k = p.hidden_states; }, "must be absent: kv is given", 1},
          {"k without v",
           [](auto& p) {
             p.kv = {};
             p.k = p.hidden_states;
           },
           "must be given together with k", 1},
          {"no gradient of the keys", [](auto& p) { p.kv_grad = {}; },
           "kv_grad = absent: kv_grad, or k_grad and v_grad, must be given", 1},
          {"kv_grad and k_grad", [](auto& p) { p.k_grad = p.hidden_states_grad; },
           "must be absent: kv_grad is given", 1},
          {"k_grad without v_grad",
           [](auto& p) {
             p.kv_grad = {};
             p.k_grad = p.hidden_states;
           },
           "must be given together with k_grad", 1},
          {"packed keys, gradients apart",
           [](auto& p) {
             p.k_grad = p.hidden_states;
             p.v_grad = make_tensor(p.kv_grad.data, dtype::bf16, {5, 12});
             p.kv_grad = {};
           },
           "in the form of the inputs", 1},
          {"shape of kv_grad", [](auto& p) { p.kv_grad.extents[1] = 3; },
           "kv_grad.extents[1] = 3: must be mhc_mult + 1 = 4"},
          {"clamp_value 0", [](auto& p) { p.clamp_value = 0; }, "clamp_value = 0: must be above 0", 2},
          {"shape of weight_fused_grad", [](auto& p) { p.weight_fused_grad.extents[1] = 11; },
           "weight_fused_grad.extents[1] = 11"},
          {"out overlaps itself", [](auto& p) { p.hidden_states_grad.strides[0] = 0; },
           "must not overlap itself"},
      });
}

TEST_CASE("engram.gate_backward is the derivative of the gate") {
  queue q{cpu_selector};
  for (const double clamp : {1e-6, 0.3})
    for (const bool add_residual : {true, false}) {
      memory m;
      const std::int64_t tokens = 3, mult = 2, hidden = 5;
      gate_backward p = good(m, tokens, mult, hidden, clamp, {0, 1, 0}, add_residual);
      fill(p.weight_fused_grad, 1, 0, std::nanf(""));
      run(q, p);
      const numbers x = values(p.hidden_states), kv = values(p.kv), w = values(p.weight_fused),
                    g_out = values(p.out_grad);
      const auto loss = [&](const numbers& xs, const numbers& kvs, const numbers& ws) {
        double sum = 0;
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t i = 0; i < mult; ++i) {
            const auto xi = static_cast<std::size_t>((t * mult + i) * hidden),
                       ki = static_cast<std::size_t>((t * (mult + 1) + i) * hidden);
            const auto vi = static_cast<std::size_t>((t * (mult + 1) + mult) * hidden),
                       wi = static_cast<std::size_t>(i * hidden);
            double xx = 0, kk = 0, dot = 0;
            for (std::size_t d = 0; d < 5; ++d) {
              xx += xs[xi + d] * xs[xi + d];
              kk += kvs[ki + d] * kvs[ki + d];
              dot += xs[xi + d] * ws[wi + d] * kvs[ki + d];
            }
            const double s = dot / std::sqrt((xx / 5 + 1e-6) * (kk / 5 + 1e-6) * 5);
            const double g =
                t == 1 ? 0 : 1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::fabs(s), clamp)), s)));
            for (std::size_t d = 0; d < 5; ++d)
              sum += g_out[xi + d] * ((add_residual ? xs[xi + d] : 0) + g * kvs[vi + d]);
          }
        return sum;
      };
      expect_gradient(
          "hidden_states_grad", x, values(p.hidden_states_grad),
          [&](const numbers& v) { return loss(v, kv, w); }, 0.004, 1e-4);
      expect_gradient(
          "kv_grad", kv, values(p.kv_grad), [&](const numbers& v) { return loss(x, v, w); }, 0.004, 1e-4);
      expect_gradient(
          "weight_fused_grad", w, values(p.weight_fused_grad),
          [&](const numbers& v) { return loss(x, kv, v); }, 1e-4, 1e-5);
    }
}

TEST_CASE("engram.gate_backward: layouts, forms, masks, no tokens, accumulation") {
  queue q{cpu_selector};
  for (const auto& [mult, hidden] : {std::pair{1, 1}, {3, 12}, {4, 129}, {8, 40}}) {
    memory m;
    gate_backward p = good(m, 5, mult, hidden, 1e-6, {0, 1, 0, 0, 1});
    expect_layout_freedom(p);
    run(q, p);

    gate_backward apart = p;
    apart.k = apart.kv;
    apart.k.extents[1] = mult;
    apart.v = make_tensor(static_cast<numeric::bf16*>(p.kv.data) + mult * hidden, dtype::bf16, {5, hidden},
                          {(mult + 1) * hidden, 1});
    apart.kv = apart.kv_grad = {};
    apart.k_grad = m.make(dtype::bf16, {5, mult, hidden});
    apart.v_grad = m.make(dtype::bf16, {5, hidden});
    apart.weight_fused_grad = m.make(dtype::f32, {mult, hidden});
    run(q, apart);
    expect_layout_freedom(apart);
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t i = 0; i <= mult; ++i)
        for (std::int64_t d = 0; d < hidden; ++d)
          REQUIRE(value(p.kv_grad, (t * (mult + 1) + i) * hidden + d) ==
                  (i < mult ? value(apart.k_grad, (t * mult + i) * hidden + d)
                            : value(apart.v_grad, t * hidden + d)));
    CHECK(first_difference(p.weight_fused_grad, apart.weight_fused_grad) == -1);

    // Masked rows: gradient of the identity; what was saved for them, and their keys, are not read.
    copied<gate_backward> masked(p);
    for (const std::int64_t t : {1, 4}) {
      for (const tensor* s : {&masked.p.dot, &masked.p.gate_score, &masked.p.rstd_x, &masked.p.rstd_k})
        for (std::int64_t i = 0; i < mult; ++i) at<float>(*s, t, i) = std::nanf("");
      for (std::int64_t j = 0; j < (mult + 1) * hidden; ++j)
        static_cast<numeric::bf16*>(masked.p.kv.data)[t * (mult + 1) * hidden + j] = {0x7FC0};
    }
    run(q, masked.p);
    CHECK(first_difference(masked.p.hidden_states_grad, p.hidden_states_grad) == -1);
    CHECK(first_difference(masked.p.kv_grad, p.kv_grad) == -1);
    CHECK(first_difference(masked.p.weight_fused_grad, p.weight_fused_grad) == -1);
    for (std::int64_t j = 0; j < mult * hidden; ++j)
      CHECK(value(p.hidden_states_grad, mult * hidden + j) == value(p.out_grad, mult * hidden + j));
    for (std::int64_t j = 0; j < (mult + 1) * hidden; ++j)
      CHECK(value(p.kv_grad, 4 * (mult + 1) * hidden + j) == 0);

    copied<gate_backward> twice(p);
    twice.p.accumulate = true;
    run(q, twice.p);
    for (std::int64_t j = 0; j < mult * hidden; ++j)
      CHECK(value(twice.p.weight_fused_grad, j) ==
            Approx(2 * value(p.weight_fused_grad, j)).epsilon(1e-5).margin(1e-6));
    expect_layout_freedom(twice.p);

    gate_backward none = resized(p, "num_tokens", 0);
    run(q, none);
    for (double v : values(p.weight_fused_grad)) CHECK(v == 0);
    fill(p.weight_fused_grad, 1, 0, 3);
    none.accumulate = true;
    run(q, none);
    for (double v : values(p.weight_fused_grad)) CHECK(v == 3);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("engram.gate_backward: a zero dot product gives no NaN") {
  memory m;
  queue q{cpu_selector};
  gate_backward p = good(m, 1, 1, 8, 1e-6);
  at<float>(p.dot, 0, 0) = 0;
  run(q, p);
  for (std::int64_t d = 0; d < 8; ++d) {
    CHECK(value(p.hidden_states_grad, d) == value(p.out_grad, d));
    CHECK(value(p.kv_grad, d) == 0);
    CHECK(value(p.weight_fused_grad, d) == 0);
  }
}
