#include <cmath>
#include <limits>

#include "gemm/gemm_cases.hpp"

using namespace portile;
using namespace portile::test;
using gemm::nt;

namespace {

nt good(memory& m) {
  nt p;
  p.a = m.make(dtype::bf16, {5, 20});
  p.b = m.make(dtype::bf16, {7, 20});
  p.out = m.make(dtype::f32, {5, 7});
  fill_normal(p.a, 1);
  fill_normal(p.b, 2);
  return p;
}

nt good_quantised(memory& m) {
  nt p;
  p.a = m.make(dtype::e4m3, {5, 130});
  p.b = m.make(dtype::e4m3, {129, 130});
  p.a_sf = m.make(dtype::f32, {5, 2});
  p.b_sf = m.make(dtype::f32, {2, 2});
  p.out = m.make(dtype::bf16, {5, 129});
  return p;
}

nt good_e2m1(memory& m) {
  nt p = good_quantised(m);
  p.b = m.make(dtype::e2m1x2, {129, 65});
  p.b_sf = m.make(dtype::f32, {129, 5});
  return p;
}

// The operands of one exact problem and the product they must give.
struct exact_case {
  nt p;
  exact_factor a, b;
};
exact_case make_exact(memory& m, dtype a, dtype b, dtype out, std::int64_t rows, std::int64_t cols,
                      std::int64_t k, unsigned seed, std::int64_t padding = 0) {
  exact_case c;
  const bool q = a == dtype::e4m3, e2m1 = b == dtype::e2m1x2;
  c.a = make_factor(m, a, 0, rows, k, seed, padding, q ? 1 : 0, 128, seed % 2 != 0);
  c.b = make_factor(m, b, 0, cols, k, seed + 1, padding, q ? (e2m1 ? 1 : 128) : 0, e2m1 ? 32 : 128);
  c.p.a = c.a.codes;
  c.p.b = c.b.codes;
  c.p.a_sf = c.a.scales;
  c.p.b_sf = c.b.scales;
  c.p.out = m.make(out, {rows, cols}, {cols + padding, 1});
  return c;
}
float out_at(const tensor& t, std::int64_t i, std::int64_t j) {
  return t.dtype == dtype::f32 ? at<float>(t, i, j) : numeric::to_float(at<numeric::bf16>(t, i, j));
}
// The sum rounded once to the type of out.
float rounded(dtype type, double x) {
  return type == dtype::f32 ? static_cast<float>(x) : numeric::to_float(numeric::double_to_bf16(x));
}

}  // namespace

TEST_CASE("gemm.nt refuses bad problems") {
  expect_refusals<nt>({
      {good,
       {
           {"a absent", [](auto& p) { p.a = {}; }, "a = absent: is required"},
           {"out absent", [](auto& p) { p.out = {}; }, "out = absent: is required"},
           {"dtype of a", [](auto& p) { p.a.dtype = dtype::f16; },
            "a.dtype = f16: must be bf16, f32 or e4m3"},
           {"mixed types", [](auto& p) { p.b.dtype = dtype::f32; },
            "b.dtype = f32: must be bf16, the type of a", 1},
           {"dtype of out", [](auto& p) { p.out.dtype = dtype::f16; },
            "out.dtype = f16: must be f32 or bf16"},
           {"rank of b", [](auto& p) { p.b.rank = 1; }, "b.rank = 1"},
           {"last stride of b",
            [](auto& p) {
              p.b.strides = {1, 7};
            },
            "the last stride must be 1"},
           {"last stride of out",
            [](auto& p) {
              p.out.strides = {1, 5};
            },
            "the last stride must be 1"},
           {"K of b", [](auto& p) { p.b.extents[1] = 19; }, "b.extents[1] = 19: must be K = 20"},
           {"rows of out", [](auto& p) { p.out.extents[0] = 4; }, "out.extents[0] = 4: must be M = 5"},
           {"columns of out", [](auto& p) { p.out.extents[1] = 6; }, "out.extents[1] = 6: must be N = 7"},
           {"misaligned", [](auto& p) { p.a.data = static_cast<char*>(p.a.data) + 1; }, "misaligned"},
           {"null b", [](auto& p) { p.b.data = nullptr; }, "b.data = null"},
           {"out overlaps itself",
            [](auto& p) {
              p.out.strides = {3, 1};
            },
            "must not overlap itself"},
           {"scales of plain factors",
            [](auto& p) {
              p.a_sf = p.out;
              p.a_sf.extents = {5, 1};
            },
            "must be absent: a and b are not quantised", 2},
           {"scales of b with plain factors",
            [](auto& p) {
              p.b_sf = p.out;
              p.b_sf.extents = {1, 1};
            },
            "b_sf = ", 2},
           {"tf32_rounding", [](auto& p) { p.tf32_rounding = "up"; }, "tf32_rounding = 'up'"},
       }},
      {good_quantised,
       {
           {"a_sf absent", [](auto& p) { p.a_sf = {}; }, "a_sf = absent: is required: a and b are quantised",
            2},
           {"b_sf absent", [](auto& p) { p.b_sf = {}; }, "b_sf = absent: is required: a and b are quantised",
            2},
           {"bf16 b", [](auto& p) { p.b.dtype = dtype::bf16; }, "b.dtype = bf16: must be e4m3 or e2m1x2", 1},
           {"dtype of a_sf", [](auto& p) { p.a_sf.dtype = dtype::bf16; },
            "a_sf.dtype = bf16: must be f32 or ue8m0x4"},
           {"rows of a_sf", [](auto& p) { p.a_sf.extents[0] = 4; }, "a_sf.extents[0] = 4: must be M = 5", 2},
           {"columns of a_sf", [](auto& p) { p.a_sf.extents[1] = 1; },
            "a_sf.extents[1] = 1: must be ceil(K, 128) = 2", 2},
           {"rows of b_sf", [](auto& p) { p.b_sf.extents[0] = 1; }, "b_sf.extents[0] = 1", 2},
           {"columns of b_sf", [](auto& p) { p.b_sf.extents[1] = 1; }, "b_sf.extents[1] = 1", 2},
           {"packed a_sf not packed", [](auto& p) { p.a_sf.dtype = dtype::ue8m0x4; }, "a_sf.extents[1] = 2"},
       }},
      {good_e2m1,
       {
           {"e2m1x2 with 128 x 128 scales",
            [](auto& p) {
              p.b_sf.extents = {2, 2};
              p.b_sf.strides = {2, 1};
            },
            "b_sf.extents[0] = 2", 2},
           {"odd K", [](auto& p) { p.a.extents[1] = 129; }, "must be a multiple of 2", 1},
       }},
  });
}

TEST_CASE("gemm.nt of whole numbers is exact in every type, size and layout") {
  struct types {
    dtype a, b;
  };
  const auto pair = GENERATE(types{dtype::bf16, dtype::bf16}, types{dtype::f32, dtype::f32},
                             types{dtype::e4m3, dtype::e4m3}, types{dtype::e4m3, dtype::e2m1x2});
  const dtype out = GENERATE(dtype::f32, dtype::bf16);
  const bool accumulate = GENERATE(false, true);
  struct size {
    std::int64_t m, n, k;
  };
  for (const size s : {size{1, 1, 2}, size{3, 33, 32}, size{33, 31, 34}, size{32, 32, 128}, size{5, 130, 258},
                       size{65, 1, 384}}) {
    memory m;
    exact_case c =
        make_exact(m, pair.a, pair.b, out, s.m, s.n, s.k, static_cast<unsigned>(s.m + s.k), s.m % 3);
    c.p.accumulate = accumulate;
    for (std::int64_t i = 0; i < s.m && accumulate; ++i)
      for (std::int64_t j = 0; j < s.n; ++j)
        put_code(c.p.out, i * c.p.out.stride(0), j, static_cast<double>(i - j));
    queue q{cpu_selector};
    run(q, c.p);
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < s.n; ++j) {
        INFO(s.m << "x" << s.n << "x" << s.k << " at " << i << ", " << j);
        REQUIRE(out_at(c.p.out, i, j) ==
                rounded(out, product_at(c.a, 0, i, c.b, 0, j) +
                                 (accumulate ? rounded(out, static_cast<double>(i - j)) : 0)));
      }
    if (c.p.out.stride(0) > s.n)
      CHECK(static_cast<unsigned char*>(c.p.out.data)[size_of(out) * s.n] ==
            (s.m > 1 ? memory::poison : memory::guard));
    CHECK(m.guards_intact());
  }
}

TEST_CASE("gemm.nt of odd depths") {
  for (std::int64_t k : {1, 7, 31, 33, 127, 129})
    for (dtype t : {dtype::bf16, dtype::f32, dtype::e4m3}) {
      memory m;
      exact_case c = make_exact(m, t, t, dtype::f32, 4, 5, k, static_cast<unsigned>(k));
      queue q{cpu_selector};
      run(q, c.p);
      for (std::int64_t i = 0; i < 20; ++i)
        REQUIRE(at<float>(c.p.out, i / 5, i % 5) == product_at(c.a, 0, i / 5, c.b, 0, i % 5));
    }
}

TEST_CASE("gemm.nt without rows, columns or depth") {
  queue q{cpu_selector};
  memory m;
  nt p = good(m);
  nt empty = p;
  empty.a.extents[0] = empty.out.extents[0] = 0;
  empty.a.data = empty.out.data = nullptr;
  CHECK_NOTHROW(run(q, empty));
  empty = p;
  empty.b.extents[0] = empty.out.extents[1] = 0;
  CHECK_NOTHROW(run(q, empty));
  CHECK(memory::untouched(p.out));
  nt flat = p;
  flat.a.extents[1] = flat.b.extents[1] = 0;
  flat.a.data = flat.b.data = nullptr;
  flat.accumulate = true;
  run(q, flat);
  CHECK(memory::untouched(p.out));
  flat.accumulate = false;
  run(q, flat);
  for (std::int64_t i = 0; i < 35; ++i) CHECK(numeric::float_bits(at<float>(p.out, i / 7, i % 7)) == 0);
  CHECK(m.guards_intact());
}

TEST_CASE("gemm.nt keeps NaN and infinities in their row, and never reads out unless accumulating") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  memory m;
  exact_case c = make_exact(m, dtype::f32, dtype::f32, dtype::f32, 4, 3, 5, 1);
  at<float>(c.p.a, 1, 2) = nan;
  at<float>(c.p.a, 2, 4) = inf;
  for (std::int64_t i = 0; i < 12; ++i) at<float>(c.p.out, i / 3, i % 3) = nan;
  queue q{cpu_selector};
  run(q, c.p);
  for (std::int64_t j = 0; j < 3; ++j) {
    CHECK(at<float>(c.p.out, 0, j) == product_at(c.a, 0, 0, c.b, 0, j));
    CHECK(std::isnan(at<float>(c.p.out, 1, j)));
    CHECK(at<float>(c.p.out, 2, j) == (c.b.at(0, j, 4) > 0 ? inf : -inf));
    CHECK(at<float>(c.p.out, 3, j) == product_at(c.a, 0, 3, c.b, 0, j));
  }
}

TEST_CASE("gemm.nt rounds f32 factors to tf32 as asked") {
  memory m;
  nt p;
  const float tie = 1.0f + 0x1p-11f, odd = 1.0f + 0x1p-10f + 0x1p-11f, below = 1.0f + 0x1p-11f - 0x1p-23f;
  p.a = m.of<float>({4, 1}, std::vector<float>{tie, odd, below, -tie});
  p.b = m.of<float>({1, 1}, std::vector<float>{1.0f});
  p.out = m.make(dtype::f32, {4, 1});
  queue q{cpu_selector};
  run(q, p);
  CHECK(at<float>(p.out, 0) == 1.0f + 0x1p-10f);  // ties away from zero
  CHECK(at<float>(p.out, 1) == 1.0f + 0x1p-9f);
  CHECK(at<float>(p.out, 2) == 1.0f);
  CHECK(at<float>(p.out, 3) == -1.0f - 0x1p-10f);
  p.tf32_rounding = "truncate";
  run(q, p);
  CHECK(at<float>(p.out, 0) == 1.0f);
  CHECK(at<float>(p.out, 1) == 1.0f + 0x1p-10f);
  CHECK(at<float>(p.out, 3) == -1.0f);
}

TEST_CASE("gemm.nt rounds the sum once") {
  // 1 + 2^-8 is a tie of bf16 and the last term lies far below the last bit of f32: a step through f32 would
  // lose it.
  memory m;
  nt p;
  p.a = m.make(dtype::bf16, {2, 3});
  p.b = m.make(dtype::bf16, {1, 3});
  p.out = m.make(dtype::bf16, {2, 1});
  for (std::int64_t k = 0; k < 3; ++k) at<numeric::bf16>(p.b, 0, k) = numeric::to_bf16(1.0f);
  const float terms[2][3] = {{1.0f, 0x1p-8f, 0x1p-40f}, {1.0f + 0x1p-7f, 0x1p-8f, -0x1p-40f}};
  for (std::int64_t i = 0; i < 6; ++i)
    at<numeric::bf16>(p.a, i / 3, i % 3) = numeric::to_bf16(terms[i / 3][i % 3]);
  queue q{cpu_selector};
  run(q, p);
  CHECK(numeric::to_float(at<numeric::bf16>(p.out, 0)) == 1.0f + 0x1p-7f);
  CHECK(numeric::to_float(at<numeric::bf16>(p.out, 1)) == 1.0f + 0x1p-7f);
}

TEST_CASE("gemm.nt takes packed scales and ignores their unused bytes") {
  memory m;
  exact_case c = make_exact(m, dtype::e4m3, dtype::e4m3, dtype::f32, 5, 3, 700, 3);
  queue q{cpu_selector};
  run(q, c.p);
  nt packed = c.p;
  packed.out = m.make(dtype::f32, {5, 3});
  packed.a_sf = m.make(dtype::ue8m0x4, {5, 2}, {1, 8});
  packed.b_sf = m.make(dtype::ue8m0x4, {1, 2});
  const auto pack = [](const tensor& from, const tensor& to) {
    for (std::int64_t i = 0; i < from.extent(0); ++i)
      for (std::int64_t j = 0; j < 8; ++j)
        at<numeric::ue8m0x4>(to, i, j / 4)
            .set_byte(static_cast<int>(j % 4),
                      j < from.extent(1) ? numeric::exponent_field(at<float>(from, i, j)) : 255);
  };
  pack(c.p.a_sf, packed.a_sf);
  pack(c.p.b_sf, packed.b_sf);
  run(q, packed);
  for (std::int64_t i = 0; i < 15; ++i)
    CHECK(at<float>(packed.out, i / 3, i % 3) == at<float>(c.p.out, i / 3, i % 3));
}

TEST_CASE("gemm.nt: results do not depend on their neighbours") {
  // Row i of a longer product is the product of row i, and swapping the factors transposes the result.
  memory m;
  nt p;
  p.a = m.make(dtype::bf16, {40, 200});
  p.b = m.make(dtype::bf16, {37, 200});
  p.out = m.make(dtype::f32, {40, 37});
  fill_normal(p.a, 5);
  fill_normal(p.b, 6);
  queue q{cpu_selector};
  run(q, p);
  nt row = p, swapped = p;
  row.a.data = &at<numeric::bf16>(p.a, 35);
  row.a.extents[0] = 1;
  row.out = m.make(dtype::f32, {1, 37});
  run(q, row);
  swapped.a = p.b;
  swapped.b = p.a;
  swapped.out = m.make(dtype::f32, {37, 40});
  run(q, swapped);
  for (std::int64_t j = 0; j < 37; ++j) {
    CHECK(at<float>(row.out, 0, j) == at<float>(p.out, 35, j));
    CHECK(at<float>(swapped.out, j, 35) == at<float>(p.out, 35, j));
  }
}

TEST_CASE("gemm.nt infers its result") {
  memory m;
  nt p = good(m);
  p.out = {};
  const auto specs = infer(p);
  REQUIRE(specs.size() == 1);
  CHECK(specs[0].field == "out");
  CHECK(specs[0].dtype == dtype::f32);
  CHECK(specs[0].extents == std::vector<std::int64_t>{5, 7});
}
