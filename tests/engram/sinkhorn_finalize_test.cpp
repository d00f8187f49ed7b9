#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::sinkhorn_finalize;

namespace {

sinkhorn_finalize good(memory& m) {
  sinkhorn_finalize p;
  p.matrix = fill(m.make(dtype::f32, {5, 37}), 1);
  p.row_scale = fill(m.make(dtype::f32, {5}), 2);
  p.col_scale = fill(m.make(dtype::f32, {37}), 3);
  p.out = m.make(dtype::f32, {5, 37});
  return p;
}

}  // namespace

TEST_CASE("engram.sinkhorn_finalize refuses bad problems") {
  expect_refusals<sinkhorn_finalize>(
      good,
      {
          {"matrix absent", [](auto& p) { p.matrix = {}; }, "matrix = absent: is required"},
          {"dtype", [](auto& p) { p.out.dtype = dtype::i32; }, "out.dtype = i32: must be f32"},
          {"rows", [](auto& p) { p.row_scale.extents[0] = 4; },
           "row_scale.extents[0] = 4: must be num_rows = 5"},
          {"columns", [](auto& p) { p.out.extents[1] = 36; }, "out.extents[1] = 36: must be head_dim = 37"},
          {"in place, other strides",
           [](auto& p) {
             p.out = p.matrix;
             p.matrix.extents[1] = p.out.extents[1] = p.col_scale.extents[0] = 36;
             p.out.strides[0] = 36;
           },
           "out.strides"},
      });
}

TEST_CASE("engram.sinkhorn_finalize gives every row the norm alpha, in place too") {
  memory m;
  queue q{cpu_selector};
  sinkhorn_finalize p = good(m);
  p.alpha = 3;
  for (std::int64_t d = 0; d < 37; ++d) at<float>(p.matrix, 2, d) = 0;
  expect_layout_freedom(p);
  run(q, p);
  for (std::int64_t n = 0; n < 5; ++n) {
    double norm = 0;
    for (std::int64_t d = 0; d < 37; ++d) {
      norm += std::pow(at<float>(p.out, n, d), 2);
      const double y = static_cast<double>(at<float>(p.row_scale, n)) * at<float>(p.matrix, n, d) *
                       at<float>(p.col_scale, d);
      CHECK(y * at<float>(p.out, n, d) >= 0);
    }
    CHECK(std::sqrt(norm) == Approx(n == 2 ? 0 : 3).epsilon(1e-6));
  }
  copied<sinkhorn_finalize> inplace(p);
  inplace.p.out = inplace.p.matrix;
  run(q, inplace.p);
  CHECK(first_difference(inplace.p.out, p.out) == -1);
  p.eps = 0;  // zero rows stay zero even so
  run(q, p);
  for (std::int64_t d = 0; d < 37; ++d) CHECK(at<float>(p.out, 2, d) == 0);
  CHECK_NOTHROW(run(q, resized(p, "num_rows", 0)));
  CHECK(m.guards_intact());
}
