#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::sinkhorn_momentum_update;

namespace {

sinkhorn_momentum_update good(memory& m, dtype grad = dtype::f32, dtype momentum = dtype::f32,
                              std::int64_t n = 37) {
  sinkhorn_momentum_update p;
  p.grad = fill(m.make(grad, {n}), 1);
  p.momentum_buffer = fill(m.make(momentum, {n}), 2);
  p.out = m.make(dtype::f32, {n});
  return p;
}

}  // namespace

TEST_CASE("engram.sinkhorn_momentum_update refuses bad problems") {
  expect_refusals<sinkhorn_momentum_update>(
      [](memory& m) { return good(m); },
      {
          {"grad absent", [](auto& p) { p.grad = {}; }, "grad = absent: is required"},
          {"dtype of grad", [](auto& p) { p.grad.dtype = dtype::f16; },
           "grad.dtype = f16: must be f32 or bf16"},
          {"dtype of the buffer", [](auto& p) { p.momentum_buffer.dtype = dtype::f64; },
           "momentum_buffer.dtype = f64"},
          {"dtype of out", [](auto& p) { p.out.dtype = dtype::bf16; }, "out.dtype = bf16: must be f32"},
          {"numel", [](auto& p) { p.momentum_buffer.extents[0] = 36; },
           "momentum_buffer.extents[0] = 36: must be numel = 37"},
          {"rank",
           [](auto& p) {
             p.grad.rank = 2;
             p.grad.extents = {37, 1};
             p.grad.strides = {1, 1};
           },
           "grad.rank = 2"},
      });
}

TEST_CASE("engram.sinkhorn_momentum_update: every type pair, with and without look-ahead") {
  queue q{cpu_selector};
  for (const dtype grad : {dtype::f32, dtype::bf16})
    for (const dtype momentum : {dtype::f32, dtype::bf16})
      for (const bool nesterov : {true, false}) {
        memory m;
        sinkhorn_momentum_update p = good(m, grad, momentum);
        p.nesterov = nesterov;
        copied<sinkhorn_momentum_update> before(p);
        run(q, p);
        const float b = 0.95f, a = static_cast<float>(1 - 0.95);
        for (std::int64_t i = 0; i < 37; ++i) {
          const auto g = static_cast<float>(value(before.p.grad, i)),
                     old = static_cast<float>(value(before.p.momentum_buffer, i));
          const float product = a * g, updated = std::fma(old, b, product), decayed = b * updated;
          CHECK(at<float>(p.out, i) == (nesterov ? std::fma(g, a, decayed) : updated));
          CHECK(value(p.momentum_buffer, i) ==
                (momentum == dtype::f32 ? updated : numeric::to_float(numeric::to_bf16(updated))));
        }
        expect_layout_freedom(before.p);
        CHECK_NOTHROW(run(q, resized(p, "numel", 0)));
        CHECK(m.guards_intact());
      }
}
