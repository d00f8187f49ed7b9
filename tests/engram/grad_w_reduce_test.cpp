#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::grad_w_reduce;

namespace {

grad_w_reduce good(memory& m, std::int64_t partials = 3) {
  grad_w_reduce p;
  p.weight_fused_grad_partial = fill(m.make(dtype::f32, {partials, 2, 7}), 1);
  p.weight_hidden = fill(m.make(dtype::bf16, {2, 7}), 2);
  p.weight_embed = fill(m.make(dtype::bf16, {2, 7}), 3);
  p.weight_hidden_grad = m.make(dtype::f32, {2, 7});
  p.weight_embed_grad = m.make(dtype::f32, {2, 7});
  return p;
}

}  // namespace

TEST_CASE("engram.grad_w_reduce refuses bad problems") {
  expect_refusals<grad_w_reduce>(
      [](memory& m) { return good(m); },
      {
          {"partials absent", [](auto& p) { p.weight_fused_grad_partial = {}; },
           "weight_fused_grad_partial = absent"},
          {"dtype of weights", [](auto& p) { p.weight_embed.dtype = dtype::f16; },
           "weight_embed.dtype = f16: must be bf16"},
          {"dtype of gradients", [](auto& p) { p.weight_hidden_grad.dtype = dtype::i32; },
           "weight_hidden_grad.dtype = i32: must be f32"},
          {"rank of partials", [](auto& p) { p.weight_fused_grad_partial.rank = 2; },
           "weight_fused_grad_partial.rank = 2"},
          {"hidden_size", [](auto& p) { p.weight_embed.extents[1] = 6; },
           "weight_embed.extents[1] = 6: must be hidden_size = 7"},
          {"one buffer", [](auto& p) { p.weight_embed_grad = p.weight_hidden_grad; },
           "must not be the buffer of weight_hidden_grad", 1},
      });
}

TEST_CASE("engram.grad_w_reduce overwrites or adds") {
  queue q{cpu_selector};
  for (const std::int64_t partials : {0, 1, 3, 132}) {
    memory m;
    grad_w_reduce p = good(m, partials);
    for (const tensor* t : {&p.weight_hidden_grad, &p.weight_embed_grad})
      fill(*t, 1, 0, std::nanf(""));  // never read
    run(q, p);
    copied<grad_w_reduce> added(p);
    added.p.accumulate = true;
    run(q, added.p);
    for (std::int64_t i = 0; i < 14; ++i) {
      double a = 0;
      for (std::int64_t n = 0; n < partials; ++n) a += value(p.weight_fused_grad_partial, n * 14 + i);
      CHECK(value(p.weight_hidden_grad, i) ==
            Approx(a * value(p.weight_embed, i)).epsilon(1e-5).margin(1e-5));
      CHECK(value(p.weight_embed_grad, i) ==
            Approx(a * value(p.weight_hidden, i)).epsilon(1e-5).margin(1e-5));
      CHECK(value(added.p.weight_hidden_grad, i) == Approx(2 * value(p.weight_hidden_grad, i)).epsilon(1e-6));
      CHECK(value(added.p.weight_embed_grad, i) == Approx(2 * value(p.weight_embed_grad, i)).epsilon(1e-6));
    }
    expect_layout_freedom(p);
    p.accumulate = true;
    expect_layout_freedom(p);
    CHECK(m.guards_intact());
  }
}
