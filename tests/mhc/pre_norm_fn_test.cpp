#include <cmath>

#include <portile/core/numeric/tf32.hpp>
#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using mhc::pre_norm_fn;

namespace {

pre_norm_fn good(memory& m, std::int64_t mult, std::int64_t hidden) {
  pre_norm_fn p;
  const std::int64_t mixes = mult * (mult + 2);
  p.residual = fill(m.make(dtype::bf16, {5, mult, hidden}), 1);
  p.fn = fill(m.make(dtype::f32, {mixes, mult * hidden}), 2, 0.05f);
  p.norm_weight = fill(m.make(dtype::f32, {mult * hidden}), 3, 0.1f, 1);
  p.out_mul = m.make(dtype::f32, {5, mixes});
  p.sqrsum = m.make(dtype::f32, {5});
  p.out = m.make(dtype::f32, {5, mixes});
  return p;
}
pre_norm_fn good(memory& m) { return good(m, 3, 24); }

}  // namespace

TEST_CASE("mhc.pre_norm_fn refuses bad problems") {
  expect_refusals<pre_norm_fn>(
      [](memory& m) { return good(m); },
      {
          {"residual absent", [](auto& p) { p.residual = {}; }, "residual = absent: is required"},
          {"dtype of residual",
           [](auto& p) {
             p.residual.dtype = dtype::f32;
             p.residual.strides = {72, 24, 1};
           },
           "residual.dtype = f32: must be bf16"},
          {"dtype of fn", [](auto& p) { p.fn.dtype = dtype::i32; }, "fn.dtype = i32: must be f32"},
          {"rows of fn", [](auto& p) { p.fn.extents[0] = 14; }, "fn.extents[0] = 14"},
          {"columns of fn", [](auto& p) { p.fn.extents[1] = 71; },
           "fn.extents[1] = 71: must be mhc_mult * hidden_size = 72"},
          {"length of norm_weight", [](auto& p) { p.norm_weight.extents[0] = 71; },
           "norm_weight.extents[0] = 71"},
          {"hidden_size",
           [](auto& p) {
             p.residual.extents[2] = 20;
             p.fn.extents[1] = p.norm_weight.extents[0] = 60;
           },
           "hidden_size = 20: must be a positive multiple of 8", 1},
          {"mhc_mult 9",
           [](auto& p) {
             p.residual.extents[1] = 9;
             p.residual.strides = {216, 24, 1};
             p.fn.extents = {99, 216};
             p.fn.strides = {216, 1};
             p.norm_weight.extents[0] = 216;
             p.out.extents[1] = p.out_mul.extents[1] = 99;
             p.out.strides[0] = p.out_mul.strides[0] = 99;
           },
           "mhc_mult = 9: must be at most 8", 2},
          {"mhc_mult 0",
           [](auto& p) {
             p.residual.extents[1] = p.norm_weight.extents[0] = p.out.extents[1] = p.out_mul.extents[1] = 0;
             p.fn.extents = {0, 0};
           },
           "mhc_mult = 0: must be at least 1", 2},
          {"n_splits", [](auto& p) { p.n_splits = 0; }, "n_splits = 0: must be at least 1", 3},
          {"shape of out", [](auto& p) { p.out.extents[1] = 14; }, "out.extents[1] = 14"},
          {"shape of out_mul", [](auto& p) { p.out_mul.extents[0] = 4; }, "out_mul.extents[0] = 4"},
          {"head with all rows", [](auto& p) { p.head = true; }, "fn.extents[0] = 15"},
      });
}

TEST_CASE("mhc.pre_norm_fn follows its formula for every mhc_mult") {
  queue q{cpu_selector};
  for (std::int64_t mult = 1; mult <= 8; ++mult) {
    memory m;
    const std::int64_t hidden = mult == 2 ? 8 : 24, size = mult * hidden, mixes = mult * (mult + 2);
    pre_norm_fn p = good(m, mult, hidden);
    p.norm_eps = 0.01;
    run(q, p);
    for (std::int64_t t = 0; t < 5; ++t) {
      double squares = 0;
      for (std::int64_t k = 0; k < size; ++k) squares += std::pow(value(p.residual, t * size + k), 2);
      CHECK(at<float>(p.sqrsum, t) == Approx(squares).epsilon(1e-6));
      for (std::int64_t j = 0; j < mixes; ++j) {
        double mul = 0, bound = 0;
        for (std::int64_t k = 0; k < size; ++k) {
          const double term = value(p.residual, t * size + k) *
                              numeric::to_tf32_nearest(at<float>(p.fn, j, k) * at<float>(p.norm_weight, k));
          mul += term;
          bound += std::fabs(term);
        }
        CHECK(at<float>(p.out_mul, t, j) == Approx(mul).margin(1e-6 * bound));
        CHECK(at<float>(p.out, t, j) ==
              Approx(mul / std::sqrt(squares / static_cast<double>(size) + 0.01)).margin(1e-6 * bound));
      }
    }
    expect_layout_freedom(p);
    expect_tokens_alone(p);

    // Merging the weight by hand, the head's rows alone, and not saving change nothing.
    copied<pre_norm_fn> merged(p), head(p), unsaved(p);
    for (std::int64_t j = 0; j < mixes; ++j)
      for (std::int64_t k = 0; k < size; ++k) at<float>(merged.p.fn, j, k) *= at<float>(p.norm_weight, k);
    merged.p.norm_weight = {};
    run(q, merged.p);
    CHECK(first_difference(merged.p.out, p.out) == -1);
    CHECK(first_difference(merged.p.out_mul, p.out_mul) == -1);
    head.p.head = true;
    head.p.fn.extents[0] = head.p.out.extents[1] = head.p.out_mul.extents[1] = mult;
    run(q, head.p);
    tensor first = p.out;
    first.extents[1] = mult;
    CHECK(first_difference(head.p.out, first) == -1);
    unsaved.p.out_mul = unsaved.p.sqrsum = {};
    run(q, unsaved.p);
    CHECK(first_difference(unsaved.p.out, p.out) == -1);
    CHECK(m.guards_intact());
  }
}

TEST_CASE(
    "mhc.pre_norm_fn: more splits than channels are those of one channel each; powers of two scale through") {
  memory m;
  queue q{cpu_selector};
  pre_norm_fn p = good(m, 1, 8);
  copied<pre_norm_fn> eight(p), many(p), loud(p);
  eight.p.n_splits = 8;
  many.p.n_splits = std::int64_t{1} << 62;
  run(q, eight.p);
  run(q, many.p);
  require_same_outputs(eight.p, many.p);

  p.norm_eps = loud.p.norm_eps = 0;
  for (std::int64_t i = 0; i < 40; ++i)
    set_value(loud.p.residual, i, static_cast<float>(4 * value(p.residual, i)));
  run(q, p);
  run(q, loud.p);
  CHECK(first_difference(p.out, loud.p.out) == -1);
  CHECK(at<float>(loud.p.sqrsum, 2) == 16 * at<float>(p.sqrsum, 2));
}

TEST_CASE("mhc.pre_norm_fn: infinite and huge weights do not become NaN by rounding") {
  memory m;
  queue q{cpu_selector};
  pre_norm_fn p = good(m, 1, 8);
  p.norm_weight = {};
  fill(p.residual, 1, 0, 1);
  fill(p.fn, 1, 0, 0);
  at<float>(p.fn, 0, 0) = std::numeric_limits<float>::max();
  at<float>(p.fn, 1, 0) = -std::numeric_limits<float>::infinity();
  run(q, p);
  CHECK(at<float>(p.out, 0, 0) == std::numeric_limits<float>::infinity());
  CHECK(at<float>(p.out, 0, 1) == -std::numeric_limits<float>::infinity());
  CHECK(at<float>(p.out, 0, 2) == 0);
}
