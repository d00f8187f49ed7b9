#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::reduce_partials_and_rmsnorm_backward;

namespace {

reduce_partials_and_rmsnorm_backward good(memory& m, std::int64_t groups = 2) {
  reduce_partials_and_rmsnorm_backward p;
  p.out_grad = fill(m.make(dtype::f32, {4, 7}), 1);
  p.out_mul = fill(m.make(dtype::f32, {4, groups, 7}), 2);
  p.sqrsum = fill(m.make(dtype::f32, {4, groups}), 3, 0.5f, 8);
  p.out_mul_grad = m.make(dtype::f32, {4, groups, 7});
  p.sqrsum_grad = m.make(dtype::f32, {4, groups});
  p.rms_group_size = 20;
  p.norm_eps = 0.25;
  return p;
}

}  // namespace

TEST_CASE("mhc.reduce_partials_and_rmsnorm_backward refuses bad problems") {
  expect_refusals<reduce_partials_and_rmsnorm_backward>(
      [](memory& m) { return good(m); },
      {
          {"sqrsum absent", [](auto& p) { p.sqrsum = {}; }, "sqrsum = absent: is required"},
          {"dtype", [](auto& p) { p.out_grad.dtype = dtype::bf16; }, "out_grad.dtype = bf16: must be f32"},
          {"groups differ", [](auto& p) { p.sqrsum.extents[1] = 1; },
           "sqrsum.extents[1] = 1: must be n_rms_group = 2"},
          {"rms_group_size", [](auto& p) { p.rms_group_size = -1; },
           "rms_group_size = -1: must be at least 1", 1},
          {"shape of out_mul_grad", [](auto& p) { p.out_mul_grad.extents[2] = 6; },
           "out_mul_grad.extents[2] = 6: must be mhc_mult3 = 7"},
      });
}

TEST_CASE("mhc.reduce_partials_and_rmsnorm_backward is the derivative") {
  queue q{cpu_selector};
  for (const std::int64_t groups : {1, 2, 3}) {
    memory m;
    reduce_partials_and_rmsnorm_backward p = good(m, groups);
    run(q, p);
    const numbers g = values(p.out_grad), mul = values(p.out_mul), squares = values(p.sqrsum);
    const auto loss = [&](const numbers& ms, const numbers& ss) {
      double sum = 0;
      for (std::size_t k = 0; k < ms.size(); ++k)
        sum += g[k / (7 * static_cast<std::size_t>(groups)) * 7 + k % 7] * ms[k] /
               std::sqrt(ss[k / 7] / 20 + 0.25);
      return sum;
    };
    expect_gradient(
        "out_mul_grad", mul, values(p.out_mul_grad), [&](const numbers& v) { return loss(v, squares); }, 1e-5,
        1e-6);
    expect_gradient(
        "sqrsum_grad", squares, values(p.sqrsum_grad), [&](const numbers& v) { return loss(mul, v); }, 1e-4,
        1e-5);
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    CHECK(m.guards_intact());
  }
}
