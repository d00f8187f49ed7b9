// Every compare kind of the golden data, passing and failing.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "checker/compare.hpp"
#include "support/catch.hpp"

using namespace portile;
using namespace portile::golden;

namespace {

template <class T>
std::vector<unsigned char> bytes_of(const std::vector<T>& v) {
  std::vector<unsigned char> b(v.size() * sizeof(T));
  std::memcpy(b.data(), v.data(), b.size());
  return b;
}

// Compares arrays of one shape.
template <class T>
std::optional<difference> differs(const comparison& how, dtype type, std::vector<std::int64_t> shape, const std::vector<T>& expected,
                               const std::vector<T>& got, const row_mask* rows = nullptr, const row_mask* exact = nullptr) {
  const auto e = bytes_of(expected), g = bytes_of(got);
  return compare(how, {type, shape, e}, {type, shape, g}, rows, exact);
}

const float nan_value = std::numeric_limits<float>::quiet_NaN();
float after(float x, int steps) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(steps)); }

}  // namespace

TEST_CASE("compare bits") {
  comparison how;
  CHECK_FALSE(differs<float>(how, dtype::f32, {2}, {1, nan_value}, {1, nan_value}));
  CHECK(differs<float>(how, dtype::f32, {1}, {0.0f}, {-0.0f}));
  const auto d = differs<float>(how, dtype::f32, {2, 3}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4.5f, 6});
  REQUIRE(d);
  CHECK(d->index == std::vector<std::int64_t>{1, 1});
  CHECK(d->expected == "4");
  CHECK(d->got == "4.5");
  CHECK(d->expected_bits == "0x40800000");
  CHECK(d->got_bits == "0x40900000");
  CHECK(d->text.find("2 of 6") != std::string::npos);

  const float other_nan = after(nan_value, 1);
  CHECK(differs<float>(how, dtype::f32, {1}, {nan_value}, {other_nan}));
  how.any_nan = true;
  CHECK_FALSE(differs<float>(how, dtype::f32, {1}, {nan_value}, {other_nan}));
  CHECK(differs<float>(how, dtype::f32, {1}, {1.0f}, {nan_value}));
  CHECK(differs<float>(how, dtype::f32, {1}, {nan_value}, {1.0f}));
  CHECK_FALSE(differs<unsigned char>(how, dtype::e4m3, {1}, {0x7F}, {0xFF}));
  CHECK(differs<std::int32_t>(how, dtype::ue8m0x4, {1}, {0x7F}, {0xFF}));
}

TEST_CASE("compare counts only the rows of the mask") {
  const comparison how;
  const row_mask one{{3}, {1, 0, 1}}, two{{2, 2}, {1, 1, 0, 1}};
  CHECK_FALSE(differs<float>(how, dtype::f32, {3, 2}, {0, 1, 2, 3, 4, 5}, {0, 1, 9, 9, 4, 5}, &one));
  CHECK(differs<float>(how, dtype::f32, {3, 2}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 9}, &one)->index == std::vector<std::int64_t>{2, 1});
  CHECK_FALSE(differs<float>(how, dtype::f32, {2, 2, 1}, {0, 1, 2, 3}, {0, 1, 9, 3}, &two));
  CHECK(differs<float>(how, dtype::f32, {2, 2, 1}, {0, 1, 2, 3}, {0, 9, 2, 3}, &two));
  CHECK_THROWS(differs<float>(how, dtype::f32, {2}, {0, 1}, {0, 1}, &one));
}

TEST_CASE("compare close") {
  comparison how;
  how.kind = compare_kind::close;
  how.atol = 0.5;
  how.rtol = 0.25;
  CHECK_FALSE(differs<float>(how, dtype::f32, {2}, {4, -4}, {5.5f, -2.5f}));
  CHECK(differs<float>(how, dtype::f32, {1}, {4}, {after(5.5f, 1)}));
  CHECK(differs<float>(how, dtype::f32, {1}, {4}, {nan_value}));
  CHECK(differs<float>(how, dtype::f32, {1}, {nan_value}, {nan_value}));
  CHECK_FALSE(differs<std::uint16_t>(how, dtype::bf16, {1}, {0x4080}, {0x40A0}));  // 4 and 5
  CHECK(differs<std::uint16_t>(how, dtype::bf16, {1}, {0x4080}, {0x40C0}));        // 4 and 6
  CHECK_FALSE(differs<double>(how, dtype::f64, {}, {1}, {1.5}));
  const row_mask exact{{2}, {0, 1}};
  CHECK_FALSE(differs<float>(how, dtype::f32, {2}, {1, 1}, {1.5f, 1}, nullptr, &exact));
  CHECK(differs<float>(how, dtype::f32, {2}, {1, 1}, {1.5f, after(1, 1)}, nullptr, &exact)->index == std::vector<std::int64_t>{1});
}

TEST_CASE("compare close_rowmax") {
  comparison how;
  how.kind = compare_kind::close_rowmax;
  how.rtol = 0;
  how.atol_times_rowmax = 0.125;
  // The bound is 0.125 * 8 in the first row and 0.125 * 1 in the second.
  CHECK_FALSE(differs<float>(how, dtype::f32, {2, 2}, {0, -8, 0, 1}, {1, -8, 0.125f, 1}));
  CHECK(differs<float>(how, dtype::f32, {2, 2}, {0, -8, 0, 1}, {1, -8, 0.25f, 1})->index == std::vector<std::int64_t>{1, 0});
  how.rtol = 0.5;
  CHECK_FALSE(differs<float>(how, dtype::f32, {2, 2}, {0, -8, 0, 1}, {0, -13, 0, 1}));
  CHECK(differs<float>(how, dtype::f32, {2, 2}, {0, -8, 0, 1}, {0, -13.5f, 0, 1}));
}

TEST_CASE("compare ulp") {
  comparison how;
  how.kind = compare_kind::ulp;
  how.max = 2;
  CHECK_FALSE(differs<float>(how, dtype::f32, {3}, {1, 0.0f, -1}, {after(1, 2), -0.0f, after(-1, 2)}));
  CHECK(differs<float>(how, dtype::f32, {1}, {1}, {after(1, 3)}));
  // Across zero: the smallest values of both signs are two apart.
  CHECK_FALSE(differs<std::uint16_t>(how, dtype::bf16, {1}, {0x0001}, {0x8001}));
  CHECK(differs<std::uint16_t>(how, dtype::bf16, {1}, {0x0001}, {0x8002}));
  CHECK(differs<std::uint16_t>(how, dtype::bf16, {1}, {0x7F80}, {0x7F81}));  // infinity and NaN
  how.or_atol_times_rowmax = 0.5;
  CHECK_FALSE(differs<float>(how, dtype::f32, {1, 2}, {0, 4}, {2, 4}));
  CHECK(differs<float>(how, dtype::f32, {1, 2}, {0, 4}, {2.5f, 4}));
}

TEST_CASE("compare code_rank") {
  comparison how;
  how.kind = compare_kind::code_rank;
  how.max = 1;
  how.max_fraction = 0.5;
  using codes = std::vector<unsigned char>;
  CHECK_FALSE(differs<unsigned char>(how, dtype::e4m3, {4}, codes{0x38, 0x80, 0x10, 0x01}, codes{0x39, 0x00, 0x10, 0x80}));
  CHECK(differs<unsigned char>(how, dtype::e4m3, {2}, codes{0x38, 0x10}, codes{0x3A, 0x10}));                // two ranks
  CHECK(differs<unsigned char>(how, dtype::e4m3, {2}, codes{0x01, 0x10}, codes{0x81, 0x10}));                // two ranks, across zero
  CHECK(differs<unsigned char>(how, dtype::e4m3, {3}, codes{0x38, 0x10, 0x20}, codes{0x39, 0x11, 0x20}));    // too many
  CHECK_FALSE(differs<unsigned char>(how, dtype::e2m1x2, {1}, codes{0x21}, codes{0x31}));                    // one of two values
  CHECK(differs<unsigned char>(how, dtype::e2m1x2, {1}, codes{0x21}, codes{0x32}));                          // both
  CHECK(differs<unsigned char>(how, dtype::e2m1x2, {1}, codes{0x21}, codes{0x41}));                          // two ranks
  const row_mask rows{{2}, {1, 0}};
  CHECK_FALSE(differs<unsigned char>(how, dtype::e4m3, {2, 1}, codes{0x38, 0x10}, codes{0x38, 0x70}, &rows));
}

TEST_CASE("compare calc_diff") {
  comparison how;
  how.kind = compare_kind::calc_diff;
  how.below = 0.25;
  CHECK_FALSE(differs<float>(how, dtype::f32, {2}, {0, 0}, {0, 0}));
  CHECK_FALSE(differs<float>(how, dtype::f32, {2}, {1, 2}, {1, 2.5f}));
  CHECK(differs<float>(how, dtype::f32, {2}, {1, 2}, {1, -2})->index == std::vector<std::int64_t>{1});
  CHECK(differs<float>(how, dtype::f32, {1}, {0}, {1}));
  CHECK(differs<float>(how, dtype::f32, {1}, {1}, {nan_value}));
  how.below = 0;  // not below: equal arrays fail too
  CHECK(differs<float>(how, dtype::f32, {1}, {1}, {1}));
}

TEST_CASE("values and bits are printed by their type") {
  const unsigned char e2m1[] = {0xF2}, ue8m0[] = {1, 2, 3, 4}, bf16[] = {0x80, 0x3F}, minus_one[] = {255, 255, 255, 255, 255, 255, 255, 255};
  CHECK(value_text(dtype::e2m1x2, e2m1) == "(1, -6)");
  CHECK(value_text(dtype::ue8m0x4, ue8m0) == "exponents (1, 2, 3, 4)");
  CHECK(bits_text(dtype::ue8m0x4, ue8m0) == "0x04030201");
  CHECK(value_text(dtype::bf16, bf16) == "1");
  CHECK(bits_text(dtype::bf16, bf16) == "0x3f80");
  CHECK(value_text(dtype::i64, minus_one) == "-1");
  CHECK(coordinates(std::vector<std::int64_t>{2, 3, 4}, 23) == std::vector<std::int64_t>{1, 2, 3});
}
