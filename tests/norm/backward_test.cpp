#include "norm/norm_cases.hpp"

using namespace portile;
using namespace portile::test;
using norm::backward;

namespace {

backward good_of(memory& m, dtype type, dtype grad, std::int64_t tokens, std::int64_t hidden) {
  backward p;
  p.out_grad = m.make(type, {tokens, hidden});
  p.x = m.make(type, {tokens, hidden});
  p.rstd = m.make(dtype::f32, {tokens});
  p.weight = m.make(type, {hidden});
  p.residual_out_grad = m.make(type, {tokens, hidden});
  p.x_grad = m.make(type, {tokens, hidden});
  p.weight_grad = m.make(grad, {hidden});
  fill_normal(p.out_grad, 1);
  fill_normal(p.x, 2);
  fill_normal(p.weight, 3);
  fill_normal(p.residual_out_grad, 4);
  for (std::int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (std::int64_t j = 0; j < hidden; ++j)
      sum += static_cast<double>(element(p.x, t * hidden + j)) * element(p.x, t * hidden + j);
    at<float>(p.rstd, t) = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(hidden) + 1e-5));
  }
  return p;
}
backward good(memory& m) { return good_of(m, dtype::bf16, dtype::f32, 3, 64); }

}  // namespace

TEST_CASE("norm.backward refuses bad problems") {
  expect_refusals<backward>(
      good,
      {
          {"out_grad absent", [](auto& p) { p.out_grad = {}; }, "out_grad = absent: is required"},
          {"rstd absent", [](auto& p) { p.rstd = {}; }, "rstd = absent: is required"},
          {"three dimensions", [](auto& p) { p.x.rank = 3; }, "x.rank = 3"},
          {"hidden_size",
           [](auto& p) {
             p.out_grad.extents[1] = p.x.extents[1] = p.residual_out_grad.extents[1] = p.x_grad.extents[1] =
                 p.weight.extents[0] = p.weight_grad.extents[0] = 48;
           },
           "hidden_size = 48: must be a multiple of 32", 1},
          {"hidden too large",
           [](auto& p) {
             p.weight = p.weight_grad = p.residual_out_grad = {};
             p.rstd.extents[0] = 1;
             p.out_grad.extents = p.x.extents = p.x_grad.extents = {1, 8224};
           },
           "hidden_size = 8224: must be 1 to 8192", 1},
          {"no channels",
           [](auto& p) {
             p.out_grad.extents[1] = p.x.extents[1] = p.residual_out_grad.extents[1] = p.x_grad.extents[1] =
                 p.weight.extents[0] = p.weight_grad.extents[0] = 0;
           },
           "hidden_size = 0: must be 1 to 8192", 1},
          {"type of out_grad", [](auto& p) { p.out_grad.dtype = dtype::f32; },
           "out_grad.dtype = f32: must be bf16, the type of x"},
          {"type of weight", [](auto& p) { p.weight.dtype = dtype::f32; },
           "weight.dtype = f32: must be bf16, the type of x"},
          {"type of residual_out_grad", [](auto& p) { p.residual_out_grad.dtype = dtype::f32; },
           "residual_out_grad.dtype = f32: must be bf16"},
          {"type of x_grad", [](auto& p) { p.x_grad.dtype = dtype::f32; },
           "x_grad.dtype = f32: must be bf16, the type of x"},
          {"type of rstd", [](auto& p) { p.rstd.dtype = dtype::bf16; }, "rstd.dtype = bf16: must be f32"},
          {"strided rstd", [](auto& p) { p.rstd.strides[0] = 2; }, "must be contiguous", 3},
          {"strided weight", [](auto& p) { p.weight.strides[0] = 2; }, "must be contiguous", 3},
          {"strided weight_grad", [](auto& p) { p.weight_grad.strides[0] = 2; }, "must be contiguous", 3},
          {"row stride of out_grad", [](auto& p) { p.out_grad.strides[0] = 56; },
           "out_grad.strides[0] = 56: must be a multiple of 16", 2},
          {"row stride of x", [](auto& p) { p.x.strides[0] = 56; },
           "x.strides[0] = 56: must be a multiple of 16", 2},
          {"row stride of residual_out_grad", [](auto& p) { p.residual_out_grad.strides[0] = 56; },
           "residual_out_grad.strides[0] = 56: must be a multiple of 16", 2},
          {"weight_grad without weight", [](auto& p) { p.weight = {}; }, "needs weight", 3},
          {"rows of rstd", [](auto& p) { p.rstd.extents[0] = 2; },
           "rstd.extents[0] = 2: must be num_tokens = 3"},
          {"x_grad overlaps itself", [](auto& p) { p.x_grad.strides[0] = 32; }, "must not overlap itself"},
      });
}

TEST_CASE("norm.backward is the formula in double, rounded") {
  const dtype type = GENERATE(dtype::f32, dtype::bf16), grad = GENERATE(dtype::f32, dtype::bf16);
  const bool weighted = GENERATE(true, false), accumulate = GENERATE(false, true);
  constexpr std::int64_t tokens = 4, hidden = 160;
  memory m;
  backward p = good_of(m, type, grad, tokens, hidden);
  p.out_scale = 0.5;
  p.accumulate = accumulate;
  p.x_grad = m.make(type, {tokens, hidden}, {hidden + 1, 1});
  if (!weighted) p.weight = p.weight_grad = {};
  for (std::int64_t j = 0; j < hidden && weighted && accumulate; ++j)
    set_element(p.weight_grad, j, static_cast<float>(j % 7));
  queue q{cpu_selector};
  run(q, p);
  std::vector<double> dw(hidden);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<double> xh(hidden), big_d(hidden);
    double mean = 0, largest = 0;
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double d = element(p.out_grad, t * hidden + j) * 0.5;
      const auto k = static_cast<std::size_t>(j);
      xh[k] = static_cast<double>(element(p.x, t * hidden + j)) * at<float>(p.rstd, t);
      big_d[k] = weighted ? d * element(p.weight, j) : d;
      mean += xh[k] * big_d[k] / hidden;
      dw[k] += xh[k] * d;
      largest = std::max(largest, std::fabs(big_d[k]));
    }
    for (std::int64_t j = 0; j < hidden; ++j) {
      const auto k = static_cast<std::size_t>(j);
      const double g =
          (big_d[k] - xh[k] * mean) * at<float>(p.rstd, t) + element(p.residual_out_grad, t * hidden + j);
      INFO(t << ", " << j);
      REQUIRE(std::fabs(element(p.x_grad, t * (hidden + 1) + j) - g) <=
              (type == dtype::f32 ? 1e-6 : 0.004) * std::fabs(g) + 2e-6 * largest);
    }
  }
  for (std::int64_t j = 0; j < hidden && weighted; ++j) {
    const double w = dw[static_cast<std::size_t>(j)] + (accumulate ? static_cast<double>(j % 7) : 0);
    REQUIRE(std::fabs(element(p.weight_grad, j) - w) <=
            (grad == dtype::f32 ? 1e-6 : 0.004) * std::fabs(w) + 2e-6);
  }
  CHECK(static_cast<unsigned char*>(p.x_grad.data)[hidden * size_of(type)] == memory::poison);
  CHECK(m.guards_intact());
}

TEST_CASE("norm.backward is the derivative of norm.forward") {
  // d/ds of <out(x + s v), g> by central differences, in double on the formula of the forward pass.
  constexpr std::int64_t hidden = 64;
  memory m;
  backward p = good_of(m, dtype::f32, dtype::f32, 1, hidden);
  p.residual_out_grad = {};
  p.out_scale = 1.5;
  queue q{cpu_selector};
  run(q, p);
  std::vector<double> v(hidden);
  for (std::int64_t j = 0; j < hidden; ++j) v[static_cast<std::size_t>(j)] = std::sin(static_cast<double>(j));
  const auto loss = [&](double s, double sw) {
    double sum = 0, dot = 0;
    for (std::int64_t j = 0; j < hidden; ++j)
      sum += std::pow(element(p.x, j) + s * v[static_cast<std::size_t>(j)], 2);
    const double rstd = 1 / std::sqrt(sum / hidden + 1e-5);
    for (std::int64_t j = 0; j < hidden; ++j) {
      const double vj = v[static_cast<std::size_t>(j)];
      dot +=
          element(p.out_grad, j) * (element(p.x, j) + s * vj) * rstd * (element(p.weight, j) + sw * vj) * 1.5;
    }
    return dot;
  };
  double along_x = 0, along_w = 0;
  for (std::int64_t j = 0; j < hidden; ++j) {
    along_x += element(p.x_grad, j) * v[static_cast<std::size_t>(j)];
    along_w += element(p.weight_grad, j) * v[static_cast<std::size_t>(j)];
  }
  const double h = 1e-4;
  CHECK(std::fabs((loss(h, 0) - loss(-h, 0)) / (2 * h) - along_x) < 1e-4 * (1 + std::fabs(along_x)));
  CHECK(std::fabs((loss(0, h) - loss(0, -h)) / (2 * h) - along_w) < 1e-4 * (1 + std::fabs(along_w)));
}

TEST_CASE("norm.backward in place and without tokens") {
  memory m;
  backward p = good_of(m, dtype::bf16, dtype::f32, 5, 96);
  queue q{cpu_selector};
  run(q, p);
  backward in_place = p;
  in_place.x_grad = in_place.out_grad = m.make(dtype::bf16, {5, 96});
  std::memcpy(in_place.out_grad.data, p.out_grad.data, 5 * 96 * 2);
  in_place.weight_grad = m.make(dtype::f32, {96});
  run(q, in_place);
  CHECK(same_bytes(p.x_grad, in_place.x_grad, 0, 0, 5 * 96));
  CHECK(same_bytes(p.weight_grad, in_place.weight_grad, 0, 0, 96));

  backward none = p;
  for (tensor backward::*t : {&backward::out_grad, &backward::x, &backward::rstd,
                              &backward::residual_out_grad, &backward::x_grad}) {
    (none.*t).extents[0] = 0;
    (none.*t).data = nullptr;
  }
  none.weight_grad = m.make(dtype::f32, {96});
  none.accumulate = true;
  run(q, none);
  CHECK(memory::untouched(none.weight_grad));
  none.accumulate = false;
  run(q, none);
  for (std::int64_t j = 0; j < 96; ++j) CHECK(numeric::float_bits(at<float>(none.weight_grad, j)) == 0);
  const auto specs = infer(p);
  REQUIRE(specs.size() == 2);
  CHECK(specs[1].dtype == dtype::f32);
}
