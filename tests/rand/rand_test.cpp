#include <cmath>

#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/f16.hpp>
#include <portile/core/numeric/normal.hpp>
#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

namespace {

std::vector<float> draw(memory& m, queue& q, std::initializer_list<std::int64_t> shape, std::int64_t seed,
                        std::int64_t offset) {
  rand::randn p{.out = m.make(dtype::f32, shape), .seed = seed, .offset = offset};
  run(q, p);
  const auto* v = static_cast<const float*>(p.out.data);
  return {v, v + p.out.numel()};
}

}  // namespace

TEST_CASE("rand.philox gives the published words") {
  memory m;
  queue q{cpu_selector};
  rand::philox p;
  p.counter =
      m.of<std::uint32_t>({3, 4}, std::vector<std::uint32_t>{0, 0, 0, 0, ~0u, ~0u, ~0u, ~0u, 0x243f6a88u,
                                                             0x85a308d3u, 0x13198a2eu, 0x03707344u});
  p.key = m.of<std::uint32_t>({3, 2}, std::vector<std::uint32_t>{0, 0, ~0u, ~0u, 0xa4093822u, 0x299f31d0u});
  p.out = m.make(dtype::u32, {3, 4}, {5, 1});
  run(q, p);
  const std::uint32_t want[3][4] = {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
                                    {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu},
                                    {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}};
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j) CHECK(at<std::uint32_t>(p.out, i, j) == want[i][j]);
  p.counter.extents[0] = p.key.extents[0] = p.out.extents[0] = 0;
  CHECK_NOTHROW(run(q, p));
  CHECK(m.guards_intact());
}

TEST_CASE("rand.seed_mix looks at the low 32 bits") {
  memory m;
  queue q{cpu_selector};
  rand::seed_mix p;
  p.seed = m.of<std::int64_t>({3}, std::vector<std::int64_t>{5, (std::int64_t{7} << 32) + 5, -1});
  p.out = m.make(dtype::u32, {3});
  run(q, p);
  CHECK(at<std::uint32_t>(p.out, 0) == at<std::uint32_t>(p.out, 1));
  CHECK(at<std::uint32_t>(p.out, 2) == numeric::seed_mix(0xFFFFFFFFu));
}

TEST_CASE("rand: bad problems are refused") {
  expect_refusals<rand::philox>(
      [](memory& m) {
        rand::philox p{m.make(dtype::u32, {2, 4}), m.make(dtype::u32, {2, 2}), m.make(dtype::u32, {2, 4})};
        return p;
      },
      {
          {"absent", [](auto& p) { p.key = {}; }, "key = absent: is required"},
          {"words of the counter", [](auto& p) { p.counter.extents[1] = 3; },
           "counter.extents[1] = 3: must be 4"},
          {"rows", [](auto& p) { p.key.extents[0] = 1; }, "key.extents[0] = 1: must be num_rows = 2"},
      });
  expect_refusals<rand::seed_mix>(
      [](memory& m) {
        return rand::seed_mix{m.make(dtype::i64, {2}), m.make(dtype::u32, {2})};
      },
      {
          {"dtype", [](auto& p) { p.seed.dtype = dtype::f64; }, "seed.dtype = f64: must be i64"},
          {"length", [](auto& p) { p.out.extents[0] = 1; }, "out.extents[0] = 1: must be num_rows = 2"},
      });
  expect_refusals<rand::randn>(
      [](memory& m) {
        return rand::randn{.out = m.make(dtype::f32, {2, 3})};
      },
      {
          {"absent", [](auto& p) { p.out = {}; }, "out = absent: is required"},
          {"dtype", [](auto& p) { p.out.dtype = dtype::i32; }, "out.dtype = i32"},
          {"overlap", [](auto& p) { p.out.strides[0] = 0; }, "must not overlap itself"},
      });
  expect_refusals<rand::randn_like>(
      [](memory& m) {
        return rand::randn_like{.x = m.make(dtype::f32, {2, 3}), .out = m.make(dtype::f32, {2, 3})};
      },
      {
          {"dtype", [](auto& p) { p.x.dtype = dtype::bf16; }, "out.dtype = f32: must be bf16, the dtype of x",
           1},
          {"rank", [](auto& p) { p.x.rank = 1; }, "out.rank = 2: must be that of x, 1", 1},
          {"shape", [](auto& p) { p.x.extents[1] = 2; }, "out.extents[1] = 3: must be that of x, 2", 1},
      });
}

TEST_CASE("core/numeric: ln and sine of random words are accurate") {
  using namespace portile::numeric;
  double ln = 0, circle = 0;
  std::mt19937 rng(1);
  for (int i = 0; i < 200000; ++i) {
    const float u = uniform_f32(i < 1000   ? static_cast<std::uint32_t>(i)
                                : i < 2000 ? 0xFFFFFFFFu - static_cast<std::uint32_t>(i - 1000)
                                           : rng());
    const double want = std::log(static_cast<double>(u));
    ln = std::max(ln, std::abs(static_cast<double>(log_f32(u)) - want) / std::max(std::abs(want), 1e-30));
    const sine_cosine got = sincos_turns_f32(u);
    const double angle = 2 * 3.14159265358979323846 * static_cast<double>(u);
    circle = std::max({circle, std::abs(static_cast<double>(got.sine) - std::sin(angle)),
                       std::abs(static_cast<double>(got.cosine) - std::cos(angle))});
  }
  CHECK(log_f32(1.0f) == 0);
  CHECK(ln < 2e-7);
  CHECK(circle < 1.2e-7);
  // The largest radius.
  const four_normals extreme = box_muller(philox_words{{0, 0, 0xFFFFFFFFu, 0}});
  CHECK(std::abs(extreme.z[0] - 6.7637f) < 1e-3f);
  CHECK(extreme.z[2] == 0);
}

TEST_CASE("rand.randn: a value depends on seed, offset and element only") {
  memory m;
  queue q{cpu_selector};
  const std::vector<float> all = draw(m, q, {16385}, 42, 7);
  CHECK(draw(m, q, {16385}, 42, 7) == all);
  for (std::initializer_list<std::int64_t> shape :
       {std::initializer_list<std::int64_t>{1}, {127, 129}, {7, 11, 13}, {16383}, {16384}}) {
    const std::vector<float> some = draw(m, q, shape, 42, 7);
    CHECK(std::equal(some.begin(), some.end(), all.begin()));
  }
  CHECK(draw(m, q, {64}, 42, 8) != std::vector<float>(all.begin(), all.begin() + 64));
  CHECK(draw(m, q, {64}, 43, 7) != std::vector<float>(all.begin(), all.begin() + 64));
  CHECK(draw(m, q, {64}, 42 + (std::int64_t{1} << 32), 7) !=
        std::vector<float>(all.begin(), all.begin() + 64));
  // Strided, transposed and narrower results hold the same numbers.
  rand::randn t{.out = m.make(dtype::f32, {30, 20}, {1, 33}), .seed = 42, .offset = 7};
  run(q, t);
  for (int i = 0; i < 600; ++i) CHECK(at<float>(t.out, i / 20, i % 20) == all[static_cast<std::size_t>(i)]);
  rand::randn b{.out = m.make(dtype::bf16, {100}), .seed = 42, .offset = 7}, h = b, d = b;
  h.out = m.make(dtype::f16, {100});
  d.out = m.make(dtype::f64, {100});
  run(q, b);
  run(q, h);
  run(q, d);
  for (int i = 0; i < 100; ++i) {
    const float z = all[static_cast<std::size_t>(i)];
    CHECK(at<numeric::bf16>(b.out, i) == numeric::to_bf16(z));
    CHECK(at<numeric::f16>(h.out, i) == numeric::to_f16(z));
    CHECK(at<double>(d.out, i) == static_cast<double>(z));
  }
  CHECK_NOTHROW(draw(m, q, {0, 5}, 1, 1));
  CHECK(draw(m, q, {}, 42, 7).size() == 1);
  CHECK(m.guards_intact());
}

TEST_CASE("rand.randn is standard normal") {
  memory m;
  queue q{cpu_selector};
  const std::vector<float> v = draw(m, q, {1 << 20}, 2026, 0);
  double sum = 0, square = 0, cube = 0, fourth = 0, neighbours = 0, positive = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double x = static_cast<double>(v[i]);
    sum += x, square += x * x, cube += x * x * x, fourth += x * x * x * x, positive += x > 0;
    if (i) neighbours += x * static_cast<double>(v[i - 1]);
  }
  const auto n = static_cast<double>(v.size());
  CHECK(std::isfinite(fourth));
  CHECK(std::abs(sum / n) < 0.005);
  CHECK(std::abs(std::sqrt(square / n) - 1) < 0.005);
  CHECK(std::abs(cube / n) < 0.02);
  CHECK(std::abs(fourth / n - 3) < 0.05);
  CHECK(std::abs(neighbours / n) < 0.005);
  CHECK(std::abs(positive / n - 0.5) < 0.005);
}

TEST_CASE("portile::generator: set_seed starts again, calls differ, a refused call does not count") {
  memory m;
  queue q{cpu_selector};
  generator g(9), other(9);
  const tensor a = m.make(dtype::f32, {32}), b = m.make(dtype::f32, {32}), c = m.make(dtype::f32, {32});
  g.randn(q, a);
  g.randn(q, b);
  CHECK(std::memcmp(a.data, b.data, 128) != 0);
  CHECK(g.offset() == 2);
  g.set_seed(9);
  g.randn(q, c);
  CHECK(std::memcmp(a.data, c.data, 128) == 0);
  tensor bad = a;
  bad.dtype = dtype::i32;
  CHECK_THROWS_AS(g.randn(q, bad), error);
  CHECK(g.offset() == 1);

  const tensor x = m.make(dtype::bf16, {4, 8}, {20, 1}), memory_of_caller = m.make(dtype::bf16, {4, 8});
  const tensor like = other.randn_like(q, x, memory_of_caller.data);
  CHECK((like.dtype == dtype::bf16 && like.rank == 2 && like.extent(1) == 8 && like.contiguous()));
  for (int i = 0; i < 32; ++i)
    CHECK(at<numeric::bf16>(like, i / 8, i % 8) == numeric::to_bf16(at<float>(a, i)));
  rand::randn_like op{.x = x, .out = m.make(dtype::bf16, {4, 8}), .seed = 9};
  run(q, op);
  CHECK(std::memcmp(op.out.data, like.data, 64) == 0);
  CHECK(infer(op)[0].strides == std::vector<std::int64_t>{8, 1});
}
