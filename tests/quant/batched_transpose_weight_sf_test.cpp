#include <optional>

#include "quant/support.hpp"

using namespace portile;
using namespace portile::test;
using quant::batched_transpose_weight_sf;

namespace {

/// Two weights: 256 x 384 and 2 x [128 x 256], one scale per 32 x 32.
struct weights {
  tensor x_sf[2], sf0[2], sf1[2];
  batched_transpose_weight_sf p;
  explicit weights(memory& m) {
    x_sf[0] = m.make(dtype::f32, {8, 12});
    x_sf[1] = m.make(dtype::f32, {2, 4, 8});
    for (const tensor& t : x_sf)
      for (std::int64_t k = 0; k < t.numel(); ++k)
        static_cast<float*>(t.data)[k] = numeric::ue8m0_to_float(static_cast<std::uint8_t>(k * 37 + 1));
    sf0[0] = m.make(dtype::ue8m0x4, {256, 3}, {1, 256});
    sf1[0] = m.make(dtype::ue8m0x4, {384, 2}, {1, 384});
    sf0[1] = m.make(dtype::ue8m0x4, {2, 128, 2}, {256, 1, 128});
    sf1[1] = m.make(dtype::ue8m0x4, {2, 256, 1}, {256, 1, 256});
    p = {.x_sf = {x_sf, 2}, .out_sf0 = {sf0, 2}, .out_sf1 = {sf1, 2}, .block_size = 32};
  }
};

}  // namespace

TEST_CASE("quant.batched_transpose_weight_sf refuses bad problems") {
  std::optional<weights> w;  // the lists live here
  expect_refusals<batched_transpose_weight_sf>(
      [&](memory& m) { return w.emplace(m).p; },
      {
          {"first results", [](auto& p) { p.out_sf0.size = 1; }, "out_sf0.size = 1: must be that of x_sf, 2"},
          {"second results", [](auto& p) { p.out_sf1.size = 1; },
           "out_sf1.size = 1: must be that of x_sf, 2"},
          {"more than 64", [](auto& p) { p.x_sf.size = 65; }, "x_sf.size = 65: must be 0 to 64"},
          {"block_size", [](auto& p) { p.block_size = 64; }, "block_size = 64: must be one of 32, 128", 1},
          {"dtype of one", [&](auto&) { w->x_sf[0].dtype = dtype::ue8m0x4; },
           "x_sf[0].dtype = ue8m0x4: must be f32"},
          {"one absent", [&](auto&) { w->x_sf[1] = {}; }, "x_sf[1] = absent: is required"},
          {"rank of one",
           [&](auto&) {
             w->x_sf[0].rank = 1;
             w->x_sf[0].strides[0] = 1;
           },
           "x_sf[0].rank = 1: must be 2 or 3"},
          {"rows", [&](auto&) { w->x_sf[0].extents[0] = 6; },
           "x_sf[0].extents[0] = 6: times block_size must be a multiple of 128", 2},
          {"columns",
           [&](auto&) {
             w->x_sf[0].extents[1] = 11;
             w->x_sf[0].strides[0] = 11;
           },
           "x_sf[0].extents[1] = 11: times block_size must be a multiple of 128", 2},
          {"no groups", [&](auto&) { w->x_sf[1].extents[0] = 0; },
           "x_sf[1].extents[0] = 0: there must be at least one group", 2},
          {"strides of first results",
           [&](auto&) {
             w->sf0[0].strides = {3, 1};
           },
           "out_sf0[0] = ue8m0x4[256, 3] on cpu: must be ue8m0x4[256, 3] strides [1, 256]", 3},
          {"shape of second results", [&](auto&) { w->sf1[1].extents[2] = 2; }, "out_sf1[1]"},
          {"strides of second results", [](auto& p) { p.transpose_sf1 = true; }, "out_sf1[0]", 3},
      });
}

TEST_CASE("quant.batched_transpose_weight_sf: bytes of rows and columns, the other view, bad scales, none") {
  memory m, n;
  weights w(m);
  run_on_host(w.p);
  const auto exponent = [&](int which, std::int64_t g, std::int64_t i, std::int64_t j) {
    const tensor& t = w.x_sf[which];
    const std::int64_t n = t.extent(t.rank - 2), k = t.extent(t.rank - 1);
    return i < n && j < k ? numeric::exponent_field(static_cast<float*>(t.data)[(g * n + i) * k + j])
                          : std::uint8_t{0};
  };
  for (int which = 0; which < 2; ++which)
    for (int side = 0; side < 2; ++side) {
      const tensor& t = (side ? w.sf1 : w.sf0)[which];
      const std::int64_t groups = which ? 2 : 1, lines = t.extent(t.rank - 2), words = t.extent(t.rank - 1);
      for (std::int64_t g = 0; g < groups; ++g)
        for (std::int64_t r = 0; r < lines; ++r)
          for (std::int64_t b = 0; b < 4 * words; ++b) {
            const auto word = static_cast<numeric::ue8m0x4*>(t.data)[(g * words + b / 4) * lines + r];
            REQUIRE(word.byte(static_cast<int>(b % 4)) ==
                    (side ? exponent(which, g, b, r / 32) : exponent(which, g, r / 32, b)));
          }
    }
  weights v(n);  // transpose_sf1 is another view of the same memory
  v.p.transpose_sf1 = true;
  const tensor before0 = v.sf1[0];
  v.sf1[0] = make_tensor(v.sf1[0].data, dtype::ue8m0x4, {2, 384});
  v.sf1[1] = make_tensor(v.sf1[1].data, dtype::ue8m0x4, {2, 1, 256});
  run_on_host(v.p);
  CHECK(same_bytes(before0, w.sf1[0]));

  static_cast<float*>(w.x_sf[1].data)[19] = 3.0f;
  expect_trap(w.p, "powers of two", 19);
  static_cast<float*>(w.x_sf[1].data)[19] = numeric::infinity();
  static_cast<float*>(w.x_sf[1].data)[20] = 0.0f;
  queue q{cpu_selector, queue_properties{.checked = true}};
  run(q, w.p);
  CHECK_NOTHROW(q.wait());
  CHECK_NOTHROW(run_on_host(batched_transpose_weight_sf{}));
  CHECK((m.guards_intact() && n.guards_intact()));
}
