#include <cmath>

#include <portile/portile.hpp>

#include "mhc/chain.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::pre_big_fuse;

namespace {

pre_big_fuse good(memory& m, std::int64_t mult = 3) {
  pre_big_fuse p;
  const std::int64_t hidden = 16, mixes = mult * (mult + 2);
  p.residual = fill(m.make(dtype::bf16, {5, mult, hidden}), 1);
  p.fn = fill(m.make(dtype::f32, {mixes, mult * hidden}), 2, 0.3f);
  p.scale = fill(m.make(dtype::f32, {3}), 3);
  p.base = fill(m.make(dtype::f32, {mixes}), 4);
  p.post_mix = m.make(dtype::f32, {5, mult});
  p.comb_mix = m.make(dtype::f32, {5, mult, mult});
  p.layer_input = m.make(dtype::bf16, {5, hidden});
  return p;
}

pre_big_fuse from_partials(memory& m, std::int64_t splits, std::int64_t mult = 3) {
  pre_big_fuse p = good(m, mult);
  mhc::pre_norm_fn_partials s;
  s.residual = p.residual;
  s.fn = p.fn;
  s.n_splits = splits;
  s.rms_group_size = p.fn.extent(1);
  s.out_mul_splitted = m.make(dtype::f32, {splits, 5, 1, p.fn.extent(0)});
  s.sqrsum_splitted = m.make(dtype::f32, {splits, 5, 1});
  queue q{cpu_selector};
  run(q, s);
  p.out_mul_splitted = make_tensor(s.out_mul_splitted.data, dtype::f32, {splits, 5, p.fn.extent(0)});
  p.sqrsum_splitted = make_tensor(s.sqrsum_splitted.data, dtype::f32, {splits, 5});
  return p;
}

}  // namespace

TEST_CASE("mhc.pre_big_fuse refuses bad problems") {
  expect_refusals<pre_big_fuse>(
      [](memory& m) { return from_partials(m, 4); },
      {
          {"residual absent", [](auto& p) { p.residual = {}; }, "residual = absent: is required"},
          {"nothing to start from", [](auto& p) { p.fn = p.out_mul_splitted = p.sqrsum_splitted = {}; },
           "fn = absent: fn, or out_mul_splitted and sqrsum_splitted, must be given", 1},
          {"products without squares", [](auto& p) { p.sqrsum_splitted = {}; },
           "sqrsum_splitted = absent: must be given together with out_mul_splitted", 1},
          {"squares without products", [](auto& p) { p.out_mul_splitted = {}; },
           "out_mul_splitted = absent: must be given together with sqrsum_splitted", 1},
          {"splits differ", [](auto& p) { p.sqrsum_splitted.extents[0] = 3; },
           "sqrsum_splitted.extents[0] = 3: must be n_splits = 4"},
          {"no splits", [](auto& p) { p.out_mul_splitted.extents[0] = p.sqrsum_splitted.extents[0] = 0; },
           "n_splits = 0: must be at least 1", 5},
          {"dtype of fn", [](auto& p) { p.fn.dtype = dtype::i32; }, "fn.dtype = i32: must be f32"},
          {"rows of fn", [](auto& p) { p.fn.extents[0] = 14; }, "fn.extents[0] = 14"},
          {"length of scale", [](auto& p) { p.scale.extents[0] = 1; }, "scale.extents[0] = 1: must be 3"},
          {"length of base", [](auto& p) { p.base.extents[0] = 14; }, "base.extents[0] = 14"},
          {"shape of comb_mix", [](auto& p) { p.comb_mix.extents[1] = 2; },
           "comb_mix.extents[1] = 2: must be mhc_mult = 3"},
          {"hidden_size",
           [](auto& p) {
             p.residual.extents[2] = p.layer_input.extents[1] = 12;
             p.fn.extents[1] = 36;
           },
           "hidden_size = 12: must be a positive multiple of 8", 2},
          {"mhc_mult 9",
           [](auto& p) {
             p.residual.extents = {0, 9, 16};
             p.post_mix.extents = {0, 9};
             p.comb_mix.extents = {0, 9, 9};
             p.comb_mix.strides = {81, 9, 1};
             p.layer_input.extents[0] = 0;
             p.fn.extents = {99, 144};
             p.base.extents[0] = 99;
             p.out_mul_splitted.extents = {4, 0, 99};
             p.sqrsum_splitted.extents = {4, 0};
           },
           "mhc_mult = 9: must be at most 8", 3},
          {"mhc_mult 0",
           [](auto& p) {
             for (tensor* t : {&p.residual, &p.post_mix, &p.comb_mix}) t->extents[1] = 0;
             p.comb_mix.extents[2] = p.base.extents[0] = p.out_mul_splitted.extents[2] = 0;
             p.fn.extents = {0, 0};
           },
           "mhc_mult = 0: must be at least 1", 3},
          {"repeat", [](auto& p) { p.sinkhorn_repeat = 0; }, "sinkhorn_repeat = 0: must be at least 1", 4},
          {"too many repeats", [](auto& p) { p.sinkhorn_repeat = 65537; },
           "sinkhorn_repeat = 65537: must be at most 65536", 4},
          {"fn_splits", [](auto& p) { p.fn_splits = 0; }, "fn_splits = 0: must be at least 1", 5},
      });
}

TEST_CASE("mhc.pre_big_fuse has the bits of the unfused operations") {
  queue q{cpu_selector};
  for (std::int64_t mult = 1; mult <= 8; ++mult)
    for (const std::int64_t splits : {1, 4, 16}) {
      memory m;
      pre_big_fuse p = from_partials(m, splits, mult);
      p.post_mult_value = 2;
      p.sinkhorn_repeat = 3;
      p.sinkhorn_eps = 1e-3;
      p.norm_eps = 1e-2;
      const unfused u = run_unfused(m, p, {}, splits);
      pre_big_fuse from_fn = p;
      from_fn.out_mul_splitted = from_fn.sqrsum_splitted = {};
      from_fn.fn_splits = splits;
      fill(p.fn, 9);  // not read beside partial sums
      run(q, p);
      CHECK(first_difference(p.post_mix, u.split.post_mix) == -1);
      CHECK(first_difference(p.comb_mix, u.sinkhorn.out) == -1);
      CHECK(first_difference(p.layer_input, u.apply.out) == -1);
      expect_layout_freedom(p);
      expect_tokens_alone(p);
      p.fn = {};
      expect_layout_freedom(p);
      fill(from_fn.fn, 2, 0.3f);
      run(q, from_fn);
      CHECK(first_difference(from_fn.comb_mix, u.sinkhorn.out) == -1);
      CHECK(first_difference(from_fn.layer_input, u.apply.out) == -1);
      CHECK(m.guards_intact());
    }
}
