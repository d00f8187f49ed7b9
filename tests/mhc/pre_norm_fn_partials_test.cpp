#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::pre_norm_fn;
using mhc::pre_norm_fn_partials;
using mhc::reduce_partials_and_rmsnorm;

namespace {

pre_norm_fn_partials good(memory& m, std::int64_t mult = 3, std::int64_t groups = 2,
                          std::int64_t splits = 5) {
  pre_norm_fn_partials p;
  const std::int64_t hidden = 16, mixes = mult * (mult + 2);
  p.n_splits = splits;
  p.rms_group_size = mult * hidden / groups;
  p.residual = fill(m.make(dtype::bf16, {4, mult, hidden}), 1);
  p.fn = fill(m.make(dtype::f32, {mixes, mult * hidden}), 2);
  p.out_mul_splitted = m.make(dtype::f32, {splits, 4, groups, mixes});
  p.sqrsum_splitted = m.make(dtype::f32, {splits, 4, groups});
  return p;
}

}  // namespace

TEST_CASE("mhc.pre_norm_fn_partials refuses bad problems") {
  expect_refusals<pre_norm_fn_partials>(
      [](memory& m) { return good(m); },
      {
          {"fn absent", [](auto& p) { p.fn = {}; }, "fn = absent: is required"},
          {"dtype", [](auto& p) { p.residual.dtype = dtype::f16; }, "residual.dtype = f16: must be bf16"},
          {"columns of fn", [](auto& p) { p.fn.extents[1] = 47; },
           "fn.extents[1] = 47: must be mhc_mult * hidden_size = 48"},
          {"splits", [](auto& p) { p.n_splits = 4; },
           "out_mul_splitted.extents[0] = 5: must be n_splits = 4"},
          {"no splits",
           [](auto& p) {
             p.n_splits = 0;
             p.out_mul_splitted.extents[0] = p.sqrsum_splitted.extents[0] = 0;
           },
           "n_splits = 0: must be at least 1", 3},
          {"rms_group_size", [](auto& p) { p.rms_group_size = 20; },
           "rms_group_size = 20: times n_rms_group must be", 4},
          {"rms_group_size 0", [](auto& p) { p.rms_group_size = 0; }, "rms_group_size = 0", 4},
          {"hidden_size",
           [](auto& p) {
             p.residual.extents[2] = 15;
             p.fn.extents[1] = 45;
           },
           "hidden_size = 15: must be a positive multiple of 8", 1},
          {"rows", [](auto& p) { p.out_mul_splitted.extents[3] = 14; },
           "out_mul_splitted.extents[3] = 14: must be mhc_mult3 = 15"},
          {"mhc_mult 9",
           [](auto& p) {
             p.residual.extents[1] = 9;
             p.residual.strides[0] = 144;
             p.fn.extents[1] = p.fn.strides[0] = 144;
             p.rms_group_size = 72;
           },
           "mhc_mult = 9: must be at most 8", 2},
          {"mhc_mult 0", [](auto& p) { p.residual.extents[1] = p.fn.extents[1] = 0; },
           "mhc_mult = 0: must be at least 1", 2},
      });
}

TEST_CASE("mhc.pre_norm_fn is the partial sums and their reduction, bit for bit") {
  queue q{cpu_selector};
  for (std::int64_t mult = 1; mult <= 8; ++mult)
    for (const std::int64_t splits : {1, 3, 16, 200}) {
      memory m;
      pre_norm_fn_partials p = good(m, mult, 1, splits);
      run(q, p);
      if (splits <= 16) expect_layout_freedom(p);
      CHECK_NOTHROW(run(q, resized(p, "num_tokens", 0)));
      reduce_partials_and_rmsnorm r;
      r.out_mul_splitted = p.out_mul_splitted;
      r.sqrsum_splitted = p.sqrsum_splitted;
      r.rms_group_size = p.rms_group_size;
      const std::int64_t mixes = p.fn.extent(0);
      r.out_mul = m.make(dtype::f32, {4, 1, mixes});
      r.sqrsum = m.make(dtype::f32, {4, 1});
      r.out = m.make(dtype::f32, {4, mixes});
      run(q, r);
      pre_norm_fn f;
      f.residual = p.residual;
      f.fn = p.fn;
      f.n_splits = splits;
      f.out_mul = m.make(dtype::f32, {4, mixes});
      f.sqrsum = m.make(dtype::f32, {4});
      f.out = m.make(dtype::f32, {4, mixes});
      run(q, f);
      CHECK(std::memcmp(f.out_mul.data, r.out_mul.data, static_cast<std::size_t>(4 * mixes * 4)) == 0);
      CHECK(std::memcmp(f.sqrsum.data, r.sqrsum.data, 16) == 0);
      CHECK(first_difference(f.out, r.out) == -1);
      CHECK(m.guards_intact());
    }
}

TEST_CASE("mhc.pre_norm_fn_partials: groups are ranges of channels") {
  memory m;
  queue q{cpu_selector};
  pre_norm_fn_partials grouped = good(m, 3, 3, 4), whole = good(m, 3, 1, 12);
  run(q, grouped);
  run(q, whole);
  for (std::int64_t s = 0; s < 4; ++s)
    for (std::int64_t t = 0; t < 4; ++t)
      for (std::int64_t g = 0; g < 3; ++g) {
        CHECK(value(grouped.sqrsum_splitted, (s * 4 + t) * 3 + g) ==
              value(whole.sqrsum_splitted, (g * 4 + s) * 4 + t));
        for (std::int64_t j = 0; j < 15; ++j)
          CHECK(value(grouped.out_mul_splitted, ((s * 4 + t) * 3 + g) * 15 + j) ==
                value(whole.out_mul_splitted, ((g * 4 + s) * 4 + t) * 15 + j));
      }
  pre_norm_fn_partials bare = grouped;
  bare.out_mul_splitted = bare.sqrsum_splitted = {};
  CHECK(infer(bare).at(0).extents == std::vector<std::int64_t>{4, 4, 3, 15});
}
