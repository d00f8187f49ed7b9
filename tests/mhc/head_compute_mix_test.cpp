#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::head_compute_mix;

namespace {

head_compute_mix good(memory& m, std::int64_t mult = 3) {
  head_compute_mix p;
  p.x = fill(m.make(dtype::f32, {5, mult}), 1);
  p.scale = fill(m.make(dtype::f32, {1}), 2);
  p.base = fill(m.make(dtype::f32, {mult}), 3);
  p.out = m.make(dtype::f32, {5, mult});
  return p;
}

}  // namespace

TEST_CASE("mhc.head_compute_mix refuses bad problems") {
  expect_refusals<head_compute_mix>(
      [](memory& m) { return good(m); },
      {
          {"base absent", [](auto& p) { p.base = {}; }, "base = absent: is required"},
          {"dtype", [](auto& p) { p.x.dtype = dtype::bf16; }, "x.dtype = bf16: must be f32"},
          {"length of scale", [](auto& p) { p.scale.extents[0] = 3; }, "scale.extents[0] = 3: must be 1"},
          {"length of base", [](auto& p) { p.base.extents[0] = 2; },
           "base.extents[0] = 2: must be mhc_mult = 3"},
          {"shape of out", [](auto& p) { p.out.extents[1] = 2; }, "out.extents[1] = 2: must be mhc_mult = 3"},
          {"rank of x", [](auto& p) { p.x.rank = 1; }, "x.rank = 1"},
          {"no streams", [](auto& p) { p.x.extents[1] = p.base.extents[0] = p.out.extents[1] = 0; },
           "mhc_mult = 0"},
      });
}

TEST_CASE("mhc.head_compute_mix is a shifted sigmoid") {
  queue q{cpu_selector};
  for (const std::int64_t mult : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    memory m;
    head_compute_mix p = good(m, mult);
    p.pre_eps = 0.5;
    at<float>(p.x, 0, 0) = 1e4f;
    at<float>(p.x, 1, 0) = -1e4f;
    run(q, p);
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t j = 0; j < mult; ++j)
        CHECK(at<float>(p.out, t, j) ==
              Approx(model::sigmoid(static_cast<double>(at<float>(p.x, t, j)) * at<float>(p.scale, 0) +
                                    at<float>(p.base, j)) +
                     0.5)
                  .epsilon(1e-6));
    expect_layout_freedom(p);
    expect_tokens_alone(p);
    CHECK(m.guards_intact());
  }
}
