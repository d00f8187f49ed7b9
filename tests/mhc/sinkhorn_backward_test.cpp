#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::sinkhorn_backward;

namespace {

sinkhorn_backward good(memory& m, std::int64_t mult = 4) {
  sinkhorn_backward p;
  p.x = fill(m.make(dtype::f32, {3, mult, mult}), 1);
  p.out_grad = fill(m.make(dtype::f32, {3, mult, mult}), 2);
  p.x_grad = m.make(dtype::f32, {3, mult, mult});
  return p;
}

}  // namespace

TEST_CASE("mhc.sinkhorn_backward refuses bad problems") {
  expect_refusals<sinkhorn_backward>(
      [](memory& m) { return good(m); },
      {
          {"out_grad absent", [](auto& p) { p.out_grad = {}; }, "out_grad = absent: is required"},
          {"dtype", [](auto& p) { p.x.dtype = dtype::bf16; }, "x.dtype = bf16: must be f32"},
          {"not square", [](auto& p) { p.out_grad.extents[2] = 3; },
           "out_grad.extents[2] = 3: must be mhc_mult = 4"},
          {"repeat 0", [](auto& p) { p.repeat = 0; }, "repeat = 0: must be at least 1", 1},
          {"too many repeats", [](auto& p) { p.repeat = 65537; }, "repeat = 65537: must be at most 65536", 1},
          {"mhc_mult 9",
           [](auto& p) {
             for (tensor* t : {&p.x, &p.out_grad, &p.x_grad}) {
               t->extents = {0, 9, 9};
               t->strides = {81, 9, 1};
             }
           },
           "mhc_mult = 9: must be at most 8", 2},
          {"mhc_mult 0",
           [](auto& p) {
             p.x.extents = p.out_grad.extents = p.x_grad.extents = {3, 0, 0};
           },
           "mhc_mult = 0: must be at least 1", 2},
      });
}

TEST_CASE("mhc.sinkhorn_backward is the derivative for every mhc_mult") {
  queue q{cpu_selector};
  for (std::int64_t mult = 1; mult <= 8; ++mult)
    for (const int repeat : {1, 2, 10, 60}) {
      memory m;
      sinkhorn_backward p = good(m, mult);
      p.repeat = repeat;
      p.eps = 1e-2;
      run(q, p);
      const numbers g = values(p.out_grad);
      const auto loss = [&](const numbers& v) {
        return inner(g, model::sinkhorn(v, static_cast<std::size_t>(mult), repeat, 1e-2));
      };
      if (mult > 1 && mult <= 4) expect_gradient("x_grad", values(p.x), values(p.x_grad), loss, 1e-4, 1e-4);
      if (mult == 1)
        for (double v : values(p.x_grad)) CHECK(v == Approx(0).margin(1e-6));
      if (repeat <= 2) {
        expect_layout_freedom(p);
        expect_tokens_alone(p);
      }
      // A common offset of a row changes nothing, so each row of the gradient sums to 0.
      for (std::int64_t row = 0; row < 3 * mult; ++row) {
        double sum = 0, size = 0;
        for (std::int64_t o = 0; o < mult; ++o) {
          sum += value(p.x_grad, row * mult + o);
          size += std::fabs(value(p.x_grad, row * mult + o));
        }
        CHECK(std::fabs(sum) <= 1e-5 * size + 1e-6);
      }
      CHECK(m.guards_intact());
    }
}
