#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::sinkhorn_step_reduce;

namespace {

sinkhorn_step_reduce good(memory& m, std::int64_t partials = 5) {
  sinkhorn_step_reduce p;
  p.col_sumsq_partial = fill(m.make(dtype::f32, {partials, 256}), 1, 0.2f, 1);
  p.col_sumsq = m.make(dtype::f32, {256});
  return p;
}

}  // namespace

TEST_CASE("engram.sinkhorn_step_reduce refuses bad problems") {
  expect_refusals<sinkhorn_step_reduce>(
      [](memory& m) { return good(m); },
      {
          {"absent", [](auto& p) { p.col_sumsq_partial = {}; }, "col_sumsq_partial = absent: is required"},
          {"dtype", [](auto& p) { p.col_sumsq.dtype = dtype::i32; }, "col_sumsq.dtype = i32: must be f32"},
          {"head_dim", [](auto& p) { p.col_sumsq_partial.extents[1] = p.col_sumsq.extents[0] = 100; },
           "head_dim = 100: must be a multiple of 256", 1},
          {"columns", [](auto& p) { p.col_sumsq.extents[0] = 128; },
           "col_sumsq.extents[0] = 128: must be head_dim = 256"},
          {"rank", [](auto& p) { p.col_sumsq_partial.rank = 1; }, "col_sumsq_partial.rank = 1"},
      });
}

TEST_CASE("engram.sinkhorn_step_reduce overwrites with the sum") {
  queue q{cpu_selector};
  for (const std::int64_t partials : {0, 1, 5, 396}) {
    memory m;
    sinkhorn_step_reduce p = good(m, partials);
    run(q, p);
    for (std::int64_t d = 0; d < 256; ++d) {
      double sum = 0;
      for (std::int64_t n = 0; n < partials; ++n) sum += at<float>(p.col_sumsq_partial, n, d);
      CHECK(at<float>(p.col_sumsq, d) == Approx(sum).epsilon(3e-6));
    }
    expect_layout_freedom(p);
    CHECK(m.guards_intact());
  }
}
