#include <cmath>

#include <portile/portile.hpp>

#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using mhc::sinkhorn;

namespace {

sinkhorn good(memory& m, std::int64_t mult, std::int64_t tokens = 5) {
  sinkhorn p;
  p.x = fill(m.make(dtype::f32, {tokens, mult, mult}), 1);
  p.out = m.make(dtype::f32, {tokens, mult, mult});
  return p;
}

}  // namespace

TEST_CASE("mhc.sinkhorn refuses bad problems") {
  expect_refusals<sinkhorn>(
      [](memory& m) { return good(m, 4); },
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"dtype", [](auto& p) { p.x.dtype = dtype::bf16; }, "x.dtype = bf16: must be f32"},
          {"not square", [](auto& p) { p.x.extents[2] = 3; }, "x.extents[2] = 3: must be mhc_mult = 4"},
          {"tokens of out", [](auto& p) { p.out.extents[0] = 4; },
           "out.extents[0] = 4: must be num_tokens = 5"},
          {"rank", [](auto& p) { p.x.rank = 2; }, "x.rank = 2"},
          {"repeat 0", [](auto& p) { p.repeat = 0; }, "repeat = 0: must be at least 1", 1},
          {"too many repeats", [](auto& p) { p.repeat = 65537; }, "repeat = 65537: must be at most 65536", 1},
          {"repeat negative", [](auto& p) { p.repeat = -1; }, "repeat = -1: must be at least 1", 1},
          {"mhc_mult 9",
           [](auto& p) {
             for (tensor* t : {&p.x, &p.out}) {
               t->extents = {0, 9, 9};
               t->strides = {81, 9, 1};
             }
           },
           "mhc_mult = 9: must be at most 8", 2},
          {"mhc_mult 0",
           [](auto& p) {
             p.x.extents = p.out.extents = {5, 0, 0};
           },
           "mhc_mult = 0: must be at least 1", 2},
      });
}

TEST_CASE("mhc.sinkhorn follows its formula for every mhc_mult") {
  queue q{cpu_selector};
  for (std::int64_t mult = 1; mult <= 8; ++mult)
    for (const std::int64_t repeat : {1, 2, 10}) {
      memory m;
      sinkhorn p = good(m, mult);
      p.repeat = repeat;
      p.eps = 1e-3;
      run(q, p);
      const auto n = static_cast<std::size_t>(mult);
      for (std::int64_t t = 0; t < 5; ++t) {
        std::vector<std::vector<double>> a(n, std::vector<double>(n));
        for (std::size_t i = 0; i < n; ++i) {
          double sum = 0;
          for (std::size_t o = 0; o < n; ++o)
            sum += a[i][o] = std::exp(
                value(p.x, (t * mult + static_cast<std::int64_t>(i)) * mult + static_cast<std::int64_t>(o)));
          for (double& v : a[i]) v = v / sum + 1e-3;
        }
        const auto columns = [&] {
          for (std::size_t o = 0; o < n; ++o) {
            double sum = 1e-3;
            for (std::size_t i = 0; i < n; ++i) sum += a[i][o];
            for (std::size_t i = 0; i < n; ++i) a[i][o] /= sum;
          }
        };
        columns();
        for (std::int64_t r = 1; r < repeat; ++r) {
          for (auto& row : a) {
            double sum = 1e-3;
            for (double v : row) sum += v;
            for (double& v : row) v /= sum;
          }
          columns();
        }
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t o = 0; o < n; ++o)
            CHECK(value(p.out,
                        (t * mult + static_cast<std::int64_t>(i)) * mult + static_cast<std::int64_t>(o)) ==
                  Approx(a[i][o]).epsilon(1.3e-6).margin(1e-6));
      }
      expect_layout_freedom(p);
      expect_tokens_alone(p);
      copied<sinkhorn> inplace(p);
      inplace.p.out = inplace.p.x;
      run(q, inplace.p);
      CHECK(first_difference(inplace.p.out, p.out) == -1);
      CHECK(m.guards_intact());
    }
}

TEST_CASE("mhc.sinkhorn: large logits, shifted rows, permuted streams") {
  memory m;
  queue q{cpu_selector};
  sinkhorn p = good(m, 4);
  run(q, p);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t o = 0; o < 4; ++o) {
      double sum = 0;
      for (std::int64_t i = 0; i < 4; ++i) sum += value(p.out, (t * 4 + i) * 4 + o);
      CHECK(sum == Approx(1).margin(2e-6));
    }
  // Swapping two rows of x swaps the rows of out: sums over a column change order only.
  copied<sinkhorn> swapped(p);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t o = 0; o < 4; ++o) {
      auto* x = static_cast<float*>(swapped.p.x.data) + t * 16 + o;
      std::swap(x[0], x[8]);
    }
  run(q, swapped.p);
  for (std::int64_t t = 0; t < 5; ++t)
    for (std::int64_t o = 0; o < 4; ++o)
      CHECK(value(swapped.p.out, t * 16 + o) == Approx(value(p.out, t * 16 + 8 + o)).epsilon(1e-5));
  // e^1000 must not overflow; a row's common offset cancels.
  copied<sinkhorn> shifted(p);
  for (std::int64_t i = 0; i < p.x.numel(); ++i) {
    set_value(shifted.p.x, i, static_cast<float>(std::round(value(p.x, i) * 16)));
    set_value(p.x, i, static_cast<float>(value(shifted.p.x, i) + 1000));
  }
  run(q, p);
  run(q, shifted.p);
  CHECK(first_difference(p.out, shifted.p.out) == -1);
}
