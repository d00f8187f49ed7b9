#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::reduce_partials_and_rmsnorm;

namespace {

reduce_partials_and_rmsnorm good(memory& m, std::int64_t splits = 3, std::int64_t groups = 2) {
  reduce_partials_and_rmsnorm p;
  p.out_mul_splitted = fill(m.make(dtype::f32, {splits, 4, groups, 7}), 1);
  p.sqrsum_splitted = fill(m.make(dtype::f32, {splits, 4, groups}), 2, 0.2f, 5);
  p.out_mul = m.make(dtype::f32, {4, groups, 7});
  p.sqrsum = m.make(dtype::f32, {4, groups});
  p.out = m.make(dtype::f32, {4, 7});
  p.rms_group_size = 20;
  return p;
}

}  // namespace

TEST_CASE("mhc.reduce_partials_and_rmsnorm refuses bad problems") {
  expect_refusals<reduce_partials_and_rmsnorm>(
      [](memory& m) { return good(m); },
      {
          {"sqrsum_splitted absent", [](auto& p) { p.sqrsum_splitted = {}; },
           "sqrsum_splitted = absent: is required"},
          {"dtype", [](auto& p) { p.out_mul_splitted.dtype = dtype::bf16; },
           "out_mul_splitted.dtype = bf16: must be f32"},
          {"splits differ", [](auto& p) { p.sqrsum_splitted.extents[0] = 2; },
           "sqrsum_splitted.extents[0] = 2: must be n_splits = 3"},
          {"no splits", [](auto& p) { p.out_mul_splitted.extents[0] = p.sqrsum_splitted.extents[0] = 0; },
           "n_splits = 0: must be at least 1", 2},
          {"groups differ", [](auto& p) { p.sqrsum.extents[1] = 1; },
           "sqrsum.extents[1] = 1: must be n_rms_group = 2"},
          {"rank", [](auto& p) { p.out_mul_splitted.rank = 3; }, "out_mul_splitted.rank = 3"},
          {"rms_group_size", [](auto& p) { p.rms_group_size = 0; }, "rms_group_size = 0: must be at least 1",
           1},
          {"columns of out", [](auto& p) { p.out.extents[1] = 6; },
           "out.extents[1] = 6: must be mhc_mult3 = 7"},
      });
}

TEST_CASE("mhc.reduce_partials_and_rmsnorm adds in order and normalises each group") {
  queue q{cpu_selector};
  for (const auto& [splits, groups] : {std::pair{1, 1}, {3, 2}, {16, 1}, {5, 4}}) {
    memory m;
    reduce_partials_and_rmsnorm p = good(m, splits, groups);
    p.norm_eps = 0.25;
    run(q, p);
    for (std::int64_t t = 0; t < 4; ++t)
      for (std::int64_t j = 0; j < 7; ++j) {
        double out = 0;
        for (std::int64_t g = 0; g < groups; ++g) {
          float mul = 0, squares = 0;
          for (std::int64_t s = 0; s < splits; ++s) {
            mul += static_cast<float>(value(p.out_mul_splitted, ((s * 4 + t) * groups + g) * 7 + j));
            squares += static_cast<float>(value(p.sqrsum_splitted, (s * 4 + t) * groups + g));
          }
          CHECK(value(p.out_mul, (t * groups + g) * 7 + j) == mul);
          CHECK(value(p.sqrsum, t * groups + g) == squares);
          out += mul / std::sqrt(squares / 20.0 + 0.25);
        }
        CHECK(at<float>(p.out, t, j) == Approx(out).epsilon(1e-6).margin(1e-6));
      }
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    copied<reduce_partials_and_rmsnorm> unsaved(p);
    unsaved.p.out_mul = unsaved.p.sqrsum = {};
    run(q, unsaved.p);
    CHECK(first_difference(unsaved.p.out, p.out) == -1);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("mhc.reduce_partials_and_rmsnorm keeps IEEE results for a zero row") {
  memory m;
  queue q{cpu_selector};
  reduce_partials_and_rmsnorm p = good(m, 1, 1);
  fill(p.sqrsum_splitted, 1, 0, 0);
  p.norm_eps = 0;
  at<float>(p.out_mul_splitted, 0, 0) = 1;
  static_cast<float*>(p.out_mul_splitted.data)[1] = 0;
  run(q, p);
  CHECK(std::isinf(at<float>(p.out, 0, 0)));
  CHECK(std::isnan(at<float>(p.out, 0, 1)));
}
