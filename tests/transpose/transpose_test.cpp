#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using one = transpose::transpose;
using transpose::batched;

namespace {

void fill_bytes(const tensor& t) {
  auto* p = static_cast<unsigned char*>(t.data);
  for (std::int64_t i = 0; i < t.span() * size_of(t.dtype); ++i)
    p[i] = static_cast<unsigned char>(i * 131 + i / 251);
}
one good(memory& m) {
  one p{.x = m.make(dtype::bf16, {64, 128}, {256, 1}), .out = m.make(dtype::bf16, {128, 64})};
  fill_bytes(p.x);
  return p;
}
batched good_batch(memory& m) {
  batched p{.x = m.make(dtype::f32, {2, 64, 128}), .out = m.make(dtype::f32, {2, 128, 64})};
  fill_bytes(p.x);
  return p;
}

}  // namespace

TEST_CASE("transpose refuses bad problems") {
  expect_refusals<one>(
      good, {
                {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
                {"type", [](auto& p) { p.x.dtype = dtype::f64; }, "x.dtype = f64: must be"},
                {"packed type", [](auto& p) { p.x.dtype = dtype::e2m1x2; }, "x.dtype = e2m1x2: must be"},
                {"types differ", [](auto& p) { p.out.dtype = dtype::f16; },
                 "out.dtype = f16: must be that of x, bf16"},
                {"shape",
                 [](auto& p) {
                   p.out.extents = {64, 128};
                   p.out.strides = {128, 1};
                 },
                 "out.extents[0] = 64: must be num_cols = 128"},
                {"num_rows", [](auto& p) { p.x.extents[0] = p.out.extents[1] = 63; },
                 "num_rows = 63: must be a multiple of 64", 1},
                {"num_cols", [](auto& p) { p.x.extents[1] = p.out.extents[0] = 100; },
                 "num_cols = 100: must be a multiple of 64", 1},
                {"row stride", [](auto& p) { p.x.strides[0] = 130; },
                 "x.strides[0] = 130: must be a multiple of 4", 2},
                {"column stride",
                 [](auto& p) {
                   p.x.strides = {1, 64};
                 },
                 "the last stride must be 1"},
                {"misaligned", [](auto& p) { p.x.data = static_cast<char*>(p.x.data) + 1; }, "misaligned"},
                {"out overlaps itself",
                 [](auto& p) {
                   p.out.strides = {0, 1};
                 },
                 "must not overlap itself"},
            });
  expect_refusals<batched>(
      good_batch,
      {
          {"rank",
           [](auto& p) {
             p.x.rank = 2;
             p.x.strides = {128, 1};
           },
           "x.rank = 2"},
          {"types differ", [](auto& p) { p.out.dtype = dtype::i32; },
           "out.dtype = i32: must be that of x, f32"},
          {"batches", [](auto& p) { p.out.extents[0] = 1; }, "out.extents[0] = 1: must be num_batches = 2"},
          {"num_rows", [](auto& p) { p.x.extents[1] = p.out.extents[2] = 32; },
           "num_rows = 32: must be a multiple of 64", 1},
          {"num_cols", [](auto& p) { p.x.extents[2] = p.out.extents[1] = 32; },
           "num_cols = 32: must be a multiple of 64", 1},
          {"row stride", [](auto& p) { p.x.strides[1] = 129; }, "x.strides[1] = 129: must be a multiple of 4",
           2},
      });
}

TEST_CASE("transpose moves every element, and twice is nothing") {
  queue q{cpu_selector};
  memory m;
  for (const dtype type : {dtype::bf16, dtype::e4m3, dtype::f32, dtype::i8}) {
    const std::int64_t size = size_of(type);
    batched p;
    p.x = m.make(type, {3, 64, 192}, {64 * 260 + 12, 260, 1});  // any batch stride is fine
    fill_bytes(p.x);
    p.out = m.make(type, {3, 192, 64}, {192 * 65, 65, 1});
    run(q, p);
    const auto address = [&](const tensor& t, std::int64_t b, std::int64_t i, std::int64_t j) {
      return static_cast<char*>(t.data) + (b * t.stride(0) + i * t.stride(1) + j * t.stride(2)) * size;
    };
    for (std::int64_t b = 0; b < 3; ++b)
      for (std::int64_t i = 0; i < 64; ++i)
        for (std::int64_t j = 0; j < 192; ++j)
          REQUIRE(std::memcmp(address(p.x, b, i, j), address(p.out, b, j, i),
                              static_cast<std::size_t>(size)) == 0);
    CHECK(static_cast<unsigned char*>(p.out.data)[64 * size] == memory::poison);

    one single{.x = m.make(type, {64, 128}), .out = m.make(type, {128, 64})};
    fill_bytes(single.x);
    run(q, single);
    one back{.x = single.out, .out = m.make(type, {64, 128})};
    run(q, back);
    CHECK(std::memcmp(back.out.data, single.x.data, static_cast<std::size_t>(64 * 128 * size)) == 0);
    CHECK(std::memcmp(single.out.data, single.x.data, static_cast<std::size_t>(64 * 128 * size)) != 0);
  }
  for (const auto& [rows, cols] : {std::pair{0, 64}, std::pair{64, 0}}) {
    one none{.x = m.make(dtype::bf16, {rows, cols}), .out = m.make(dtype::bf16, {cols, rows})};
    CHECK_NOTHROW(run(q, none));
  }
  batched none{.x = m.make(dtype::bf16, {0, 64, 64}), .out = m.make(dtype::bf16, {0, 64, 64})};
  CHECK_NOTHROW(run(q, none));
  CHECK(m.guards_intact());
}
