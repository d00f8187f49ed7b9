#include <limits>

#include "norm/norm_cases.hpp"

using namespace portile;
using namespace portile::test;
using norm::forward;

namespace {

forward good_of(memory& m, dtype type, std::int64_t tokens, std::int64_t hidden) {
  forward p;
  p.x = m.make(type, {tokens, hidden});
  p.residual = m.make(type, {tokens, hidden});
  p.weight = m.make(type, {hidden});
  p.out = m.make(type, {tokens, hidden});
  p.residual_out = m.make(type, {tokens, hidden});
  p.rstd = m.make(dtype::f32, {tokens});
  fill_normal(p.x, 1);
  fill_normal(p.residual, 2);
  fill_normal(p.weight, 3);
  return p;
}
forward good(memory& m) { return good_of(m, dtype::bf16, 3, 48); }

// Within `ulps` of the type of `type` around v.
bool near(dtype type, float got, double v, double ulps) {
  const double unit = std::ldexp(1.0, std::ilogb(v == 0 ? 1e-30 : v) - (type == dtype::f32 ? 23 : 7));
  return std::fabs(got - v) <= ulps * unit;
}

}  // namespace

TEST_CASE("norm.forward refuses bad problems") {
  expect_refusals<forward>(
      good,
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"dtype of x", [](auto& p) { p.x.dtype = dtype::f16; }, "x.dtype = f16: must be bf16 or f32"},
          {"hidden not a multiple",
           [](auto& p) {
             p.x.extents[1] = p.residual.extents[1] = p.out.extents[1] = p.residual_out.extents[1] =
                 p.weight.extents[0] = 40;
           },
           "hidden_size = 40: must be a multiple of 16", 1},
          {"hidden too large",
           [](auto& p) {
             p.residual = p.weight = p.residual_out = {};
             p.x.extents = p.out.extents = {1, 8208};
             p.rstd = {};
           },
           "hidden_size = 8208: must be 1 to 8192", 1},
          {"no channels",
           [](auto& p) {
             p.residual = p.weight = p.residual_out = {};
             p.x.extents[1] = p.out.extents[1] = 0;
           },
           "hidden_size = 0: must be 1 to 8192", 1},
          {"last stride",
           [](auto& p) {
             p.x.strides = {1, 3};
           },
           "the last stride must be 1"},
          {"row stride", [](auto& p) { p.x.strides[0] = 40; }, "x.strides[0] = 40: must be a multiple of 16",
           2},
          {"batch stride",
           [](auto& p) {
             p.residual = p.residual_out = p.rstd = {};
             p.x.rank = p.out.rank = 3;
             p.x.extents = p.out.extents = {2, 1, 48};
             p.x.strides = {72, 48, 1};
             p.out.strides = {48, 48, 1};
           },
           "x.strides[0] = 72: must be a multiple of 16", 2},
          {"type of weight", [](auto& p) { p.weight.dtype = dtype::f32; },
           "weight.dtype = f32: must be bf16, the type of x", 3},
          {"strided weight", [](auto& p) { p.weight.strides[0] = 2; }, "must be contiguous", 3},
          {"length of weight", [](auto& p) { p.weight.extents[0] = 32; },
           "weight.extents[0] = 32: must be hidden_size = 48"},
          {"type of residual", [](auto& p) { p.residual.dtype = dtype::f32; },
           "residual.dtype = f32: must be bf16, the type of x"},
          {"type of out", [](auto& p) { p.out.dtype = dtype::f32; },
           "out.dtype = f32: must be bf16, the type of x"},
          {"type of residual_out", [](auto& p) { p.residual_out.dtype = dtype::f32; },
           "residual_out.dtype = f32"},
          {"rows of residual", [](auto& p) { p.residual.extents[0] = 2; },
           "residual.extents[0] = 2: must be num_tokens = 3"},
          {"rank of out",
           [](auto& p) {
             p.out.rank = 3;
             p.out.extents = {1, 3, 48};
             p.out.strides = {144, 48, 1};
           },
           "out.rank = 3: must be 2"},
          {"rank of rstd",
           [](auto& p) {
             p.rstd.rank = 2;
             p.rstd.extents = {1, 3};
             p.rstd.strides = {3, 1};
           },
           "rstd.rank = 2: must be 1"},
          {"type of rstd", [](auto& p) { p.rstd.dtype = dtype::bf16; }, "rstd.dtype = bf16: must be f32"},
          {"misaligned", [](auto& p) { p.x.data = static_cast<char*>(p.x.data) + 1; }, "misaligned"},
          {"out overlaps itself", [](auto& p) { p.out.strides[0] = 16; }, "must not overlap itself"},
      });
}

TEST_CASE("norm.forward is the formula in double, rounded") {
  const dtype type = GENERATE(dtype::bf16, dtype::f32);
  for (std::int64_t hidden : {16, 48, 3584, 7184, 8192}) {
    memory m;
    forward p = good_of(m, type, 2, hidden);
    p.out_scale = 0.75;
    p.eps = 1e-3;
    queue q{cpu_selector};
    run(q, p);
    for (std::int64_t t = 0; t < 2; ++t) {
      double sum = 0;
      for (std::int64_t j = 0; j < hidden; ++j) {
        const float n = rounded_to(type, element(p.x, t * hidden + j) + element(p.residual, t * hidden + j));
        REQUIRE(element(p.residual_out, t * hidden + j) == n);
        sum += static_cast<double>(n) * n;
      }
      const double rstd = 1 / std::sqrt(sum / static_cast<double>(hidden) + 1e-3);
      CHECK(std::fabs(at<float>(p.rstd, t) - rstd) <= 1e-7 * rstd);
      for (std::int64_t j = 0; j < hidden; ++j) {
        INFO(hidden << ": " << t << ", " << j);
        const double v =
            static_cast<double>(element(p.residual_out, t * hidden + j)) * rstd * element(p.weight, j) * 0.75;
        REQUIRE(near(type, element(p.out, t * hidden + j), v, type == dtype::f32 ? 3 : 0.51));
      }
    }
    CHECK(m.guards_intact());
  }
}

TEST_CASE("norm.forward: a row gives the same bits in any batch, layout and memory") {
  const dtype type = GENERATE(dtype::bf16, dtype::f32);
  constexpr std::int64_t h = 80, rows = 12;
  memory m;
  forward p = good_of(m, type, rows, h);
  queue q{cpu_selector};
  run(q, p);

  // The same rows as [2, 6, h] slices of wider buffers.
  forward batched = p;
  const auto spread = [&](const tensor& from) {
    tensor t = m.make(type, {2, 6, h}, {1024, 96, 1});
    for (std::int64_t i = 0; i < rows * h; ++i)
      set_element(t, i / (6 * h) * 1024 + i / h % 6 * 96 + i % h, element(from, i));
    return t;
  };
  batched.x = spread(p.x);
  batched.residual = spread(p.residual);
  batched.out = m.make(type, {2, 6, h}, {6 * (h + 3), h + 3, 1});
  batched.residual_out = m.make(type, {2, 6, h});
  batched.rstd = m.make(dtype::f32, {2, 6}, {1, 2});
  run(q, batched);
  for (std::int64_t r = 0; r < rows; ++r) {
    CHECK(same_bytes(p.out, batched.out, r * h, r * (h + 3), h));
    CHECK(same_bytes(p.residual_out, batched.residual_out, r * h, r * h, h));
    CHECK(at<float>(p.rstd, r) == at<float>(batched.rstd, r / 6, r % 6));
    CHECK(static_cast<unsigned char*>(batched.out.data)[(r * (h + 3) + h) * size_of(type)] ==
          (r == rows - 1 ? memory::guard : memory::poison));
  }

  forward single = p;
  for (tensor forward::*t : {&forward::x, &forward::residual, &forward::out, &forward::residual_out}) {
    (single.*t).data = static_cast<char*>((single.*t).data) + 7 * h * size_of(type);
    (single.*t).extents[0] = 1;
  }
  single.rstd = m.make(dtype::f32, {1});
  single.out = m.make(type, {1, h});
  run(q, single);
  CHECK(same_bytes(p.out, single.out, 7 * h, 0, h));

  forward in_place = p;
  in_place.x = in_place.residual_out = spread(p.x);
  in_place.residual = in_place.out = spread(p.residual);
  in_place.rstd = {};
  in_place.x.rank = in_place.out.rank = in_place.residual.rank = in_place.residual_out.rank = 3;
  run(q, in_place);
  for (std::int64_t r = 0; r < rows; ++r) {
    CHECK(same_bytes(p.out, in_place.out, r * h, r / 6 * 1024 + r % 6 * 96, h));
    CHECK(same_bytes(p.residual_out, in_place.residual_out, r * h, r / 6 * 1024 + r % 6 * 96, h));
  }
  CHECK(m.guards_intact());
}

TEST_CASE("norm.forward: optional tensors, scaling, zeros") {
  memory m;
  forward p = good_of(m, dtype::f32, 2, 32);
  p.residual = p.weight = {};
  p.eps = 0;
  queue q{cpu_selector};
  run(q, p);
  CHECK(same_bytes(p.residual_out, p.x, 0, 0, 64));
  // Scaling x by a power of two leaves out as it is.
  forward scaled = p;
  scaled.x = m.make(dtype::f32, {2, 32});
  for (std::int64_t i = 0; i < 64; ++i) set_element(scaled.x, i, element(p.x, i) * 1024);
  scaled.out = m.make(dtype::f32, {2, 32});
  scaled.residual_out = scaled.rstd = {};
  run(q, scaled);
  CHECK(same_bytes(p.out, scaled.out, 0, 0, 64));

  for (std::int64_t j = 0; j < 32; ++j) set_element(p.x, 32 + j, 0);
  p.eps = 1e-6;
  run(q, p);
  for (std::int64_t j = 0; j < 32; ++j) CHECK(element(p.out, 32 + j) == 0);
  CHECK(at<float>(p.rstd, 1) == static_cast<float>(1 / std::sqrt(static_cast<double>(1e-6f))));
}

TEST_CASE("norm.forward keeps NaN and infinities in their row") {
  memory m;
  forward p = good_of(m, dtype::bf16, 3, 16);
  p.residual = {};
  set_element(p.x, 16 + 5, std::numeric_limits<float>::quiet_NaN());
  queue q{cpu_selector};
  run(q, p);
  for (std::int64_t j = 0; j < 16; ++j) {
    CHECK(std::isfinite(element(p.out, j)));
    CHECK(std::isnan(element(p.out, 16 + j)));
    CHECK(std::isfinite(element(p.out, 32 + j)));
  }
}

TEST_CASE("norm.forward without tokens, and what it infers") {
  memory m;
  forward p = good(m);
  forward none = p;
  for (tensor forward::*t :
       {&forward::x, &forward::residual, &forward::out, &forward::residual_out, &forward::rstd}) {
    (none.*t).extents[0] = 0;
    (none.*t).data = nullptr;
  }
  queue q{cpu_selector};
  CHECK_NOTHROW(run(q, none));
  p.with_rstd = true;
  const auto specs = infer(p);
  REQUIRE(specs.size() == 3);
  CHECK(specs[0].extents == std::vector<std::int64_t>{3, 48});
  CHECK(specs[1].field == "residual_out");
  CHECK(specs[2].extents == std::vector<std::int64_t>{3});
  p.residual = {};
  p.with_rstd = false;
  CHECK(infer(p).size() == 1);
}

TEST_CASE("an epsilon is a number of at least 0, in every operation that has one") {
  int with_eps = 0;
  for (const op_info& op : operations())
    for (const field_info& f : op.fields)
      if (f.kind == field_kind::attribute && f.name.ends_with("eps")) {
        CHECK(f.type == attribute_type::real);
        ++with_eps;
      }
  CHECK(with_eps > 20);
  norm::forward p;
  memory m;
  p.x = m.make(dtype::f32, {2, 64});
  p.out = m.make(dtype::f32, {2, 64});
  p.eps = 0;
  CHECK(check(p).text() == "");
  for (const double bad :
       {-1e-9, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    p.eps = bad;
    CHECK(check(p).text().find("must be a number of at least 0") != std::string::npos);
  }
}
