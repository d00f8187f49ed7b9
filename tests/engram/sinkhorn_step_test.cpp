#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using engram::sinkhorn_step;

namespace {

sinkhorn_step good(memory& m) {
  sinkhorn_step p;
  p.matrix = fill(m.make(dtype::f32, {7, 256}), 1);
  p.col_scale = fill(m.make(dtype::f32, {256}), 2, 0.1f, 1);
  p.row_scale = fill(m.make(dtype::f32, {7}), 3, 0.1f, 1);
  p.row_norm = m.make(dtype::f32, {7});
  p.col_sumsq = m.make(dtype::f32, {256});
  return p;
}

}  // namespace

TEST_CASE("engram.sinkhorn_step refuses bad problems") {
  expect_refusals<sinkhorn_step>(
      good, {
                {"row_scale absent", [](auto& p) { p.row_scale = {}; }, "row_scale = absent: is required"},
                {"dtype", [](auto& p) { p.matrix.dtype = dtype::i32; }, "matrix.dtype = i32: must be f32"},
                {"head_dim",
                 [](auto& p) { p.matrix.extents[1] = p.col_scale.extents[0] = p.col_sumsq.extents[0] = 255; },
                 "head_dim = 255: must be a multiple of 256", 1},
                {"rows", [](auto& p) { p.row_norm.extents[0] = 6; },
                 "row_norm.extents[0] = 6: must be num_rows = 7"},
                {"columns", [](auto& p) { p.col_scale.extents[0] = 128; },
                 "col_scale.extents[0] = 128: must be head_dim = 256"},
                {"stride of matrix",
                 [](auto& p) {
                   p.matrix.strides = {1, 7};
                 },
                 "the last stride must be 1"},
            });
}

TEST_CASE("engram.sinkhorn_step normalises rows and sums the squares of columns") {
  memory m;
  queue q{cpu_selector};
  sinkhorn_step p = good(m);
  expect_layout_freedom(p);
  copied<sinkhorn_step> after(p);
  run(q, after.p);
  std::vector<double> columns(256, 0);
  for (std::int64_t n = 0; n < 7; ++n) {
    double norm = 0;
    for (std::int64_t d = 0; d < 256; ++d)
      norm += std::pow(value(p.row_scale, n) * at<float>(p.matrix, n, d) * value(p.col_scale, d), 2);
    norm = std::sqrt(norm);
    CHECK(value(after.p.row_norm, n) == Approx(norm).epsilon(1e-6));
    CHECK(value(after.p.row_scale, n) == Approx(value(p.row_scale, n) / norm).epsilon(1e-6));
    for (std::int64_t d = 0; d < 256; ++d)
      columns[static_cast<std::size_t>(d)] +=
          std::pow(value(p.row_scale, n) * at<float>(p.matrix, n, d) * value(p.col_scale, d) / norm, 2);
  }
  for (std::int64_t d = 0; d < 256; ++d)
    CHECK(value(after.p.col_sumsq, d) == Approx(columns[static_cast<std::size_t>(d)]).epsilon(1e-6));
  // After one step every row has norm 1.
  copied<sinkhorn_step> again(after.p);
  run(q, again.p);
  for (double norm : values(again.p.row_norm)) CHECK(norm == Approx(1).epsilon(1e-6));

  run(q, resized(after.p, "num_rows", 0));
  for (double sum : values(after.p.col_sumsq)) CHECK(sum == 0);
  CHECK(m.guards_intact());
}

TEST_CASE("engram.sinkhorn_step leaves rows of zeros alone for ever") {
  memory m;
  queue q{cpu_selector};
  sinkhorn_step p = good(m);
  for (std::int64_t d = 0; d < 256; ++d) at<float>(p.matrix, 3, d) = 0;
  const float scale = at<float>(p.row_scale, 3);
  for (int step = 0; step < 5; ++step) {
    run(q, p);
    CHECK(at<float>(p.row_scale, 3) == scale);
    CHECK(at<float>(p.row_norm, 3) == 0);
    for (double sum : values(p.col_sumsq)) REQUIRE(std::isfinite(sum));
  }
  // Tiny rows, whose squares are no fp32 numbers, are not zero.
  for (std::int64_t d = 0; d < 256; ++d) at<float>(p.matrix, 3, d) = 1e-30f;
  run(q, p);
  CHECK(at<float>(p.row_norm, 3) == Approx(1.6e-29).epsilon(0.5));
  for (int step = 0; step < 2; ++step) run(q, p);  // the first division is by eps, the second by the norm
  CHECK(at<float>(p.row_norm, 3) == Approx(1).epsilon(1e-6));
}
