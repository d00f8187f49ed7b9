#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::sinkhorn_col_update;
using engram::sinkhorn_finalize;
using engram::sinkhorn_step;
using engram::sinkhorn_step_reduce;

namespace {

sinkhorn_col_update good(memory& m, std::int64_t columns = 37) {
  sinkhorn_col_update p;
  p.col_sumsq_partial = fill(m.make(dtype::f32, {5, columns}), 1, 0.2f, 1);
  p.col_scale = fill(m.make(dtype::f32, {columns}), 2, 0.1f, 1);
  p.col_sumsq = m.make(dtype::f32, {columns});
  return p;
}

}  // namespace

TEST_CASE("engram.sinkhorn_col_update refuses bad problems") {
  expect_refusals<sinkhorn_col_update>(
      [](memory& m) { return good(m); },
      {
          {"col_scale absent", [](auto& p) { p.col_scale = {}; }, "col_scale = absent: is required"},
          {"dtype", [](auto& p) { p.col_sumsq_partial.dtype = dtype::i32; },
           "col_sumsq_partial.dtype = i32: must be f32"},
          {"columns", [](auto& p) { p.col_scale.extents[0] = 36; },
           "col_scale.extents[0] = 36: must be head_dim = 37"},
          {"columns of col_sumsq", [](auto& p) { p.col_sumsq.extents[0] = 36; }, "col_sumsq.extents[0] = 36"},
          {"ratio negative", [](auto& p) { p.ratio = -1; }, "ratio = -1: must not be negative", 1},
          {"ratio NaN", [](auto& p) { p.ratio = std::nan(""); }, "must not be negative", 1},
      });
}

TEST_CASE("engram.sinkhorn_col_update is step_reduce and the column step") {
  memory m;
  queue q{cpu_selector};
  sinkhorn_col_update p = good(m, 256);
  p.ratio = 2.5;
  p.eps = 1e-3;
  for (std::int64_t n = 0; n < 5; ++n) at<float>(p.col_sumsq_partial, n, 7) = 0;
  expect_layout_freedom(p);
  copied<sinkhorn_col_update> before(p);
  run(q, p);
  sinkhorn_step_reduce reduce;
  reduce.col_sumsq_partial = p.col_sumsq_partial;
  reduce.col_sumsq = m.make(dtype::f32, {256});
  run(q, reduce);
  CHECK(first_difference(reduce.col_sumsq, p.col_sumsq) == -1);
  for (std::int64_t d = 0; d < 256; ++d) {
    const double old = at<float>(before.p.col_scale, d), sum = at<float>(p.col_sumsq, d);
    CHECK(at<float>(p.col_scale, d) ==
          Approx(d == 7 ? old : old / (std::sqrt(sum * 2.5) + 1e-3)).epsilon(1e-6));
  }
  CHECK(at<float>(p.col_scale, 7) == at<float>(before.p.col_scale, 7));
  before.p.col_sumsq = {};
  run(q, before.p);
  CHECK(first_difference(before.p.col_scale, p.col_scale) == -1);
  CHECK(m.guards_intact());
}

TEST_CASE("The Engram-Sinkhorn iteration ends with rows and columns of equal norms, zero rows included") {
  memory m;
  queue q{cpu_selector};
  const std::int64_t rows = 300, columns = 256;
  sinkhorn_step step;
  step.matrix = fill(m.make(dtype::f32, {rows, columns}), 1);
  for (std::int64_t d = 0; d < columns; ++d) at<float>(step.matrix, 11, d) = 0;
  step.row_scale = fill(m.make(dtype::f32, {rows}), 1, 0, 1);
  step.col_scale = fill(m.make(dtype::f32, {columns}), 1, 0, 1);
  step.row_norm = m.make(dtype::f32, {rows});
  step.col_sumsq = m.make(dtype::f32, {columns});
  sinkhorn_col_update update;
  update.col_sumsq_partial = make_tensor(step.col_sumsq.data, dtype::f32, {1, columns});
  update.col_scale = step.col_scale;
  update.ratio = static_cast<double>(columns) / (rows - 1);
  for (int i = 0; i < 20; ++i) {
    run(q, step);
    run(q, update);
  }
  sinkhorn_finalize last;
  last.matrix = last.out = step.matrix;  // in place
  last.row_scale = step.row_scale;
  last.col_scale = step.col_scale;
  last.alpha = 16;
  run(q, last);
  for (std::int64_t d = 0; d < columns; ++d) {
    double sum = 0;
    for (std::int64_t n = 0; n < rows; ++n) sum += std::pow(at<float>(last.out, n, d), 2);
    CHECK(sum == Approx(rows - 1).epsilon(1e-4));
    CHECK(at<float>(last.out, 11, d) == 0);
  }
}
