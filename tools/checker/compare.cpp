#include "compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/e2m1.hpp>
#include <portile/core/numeric/e4m3.hpp>
#include <portile/core/numeric/e4m3fnuz.hpp>
#include <portile/core/numeric/e5m2.hpp>
#include <portile/core/numeric/f16.hpp>
#include <portile/core/status.hpp>

namespace portile::golden {
namespace {

template <class T>
T load(const unsigned char* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

std::int64_t product(std::span<const std::int64_t> shape) {
  std::int64_t n = 1;
  for (const std::int64_t e : shape) n *= e;
  return n;
}

// The number that one element stands for; types that hold several values or none have no single number.
double number(dtype type, const unsigned char* p) {
  switch (type) {
    case dtype::f32:
      return load<float>(p);
    case dtype::f64:
      return load<double>(p);
    case dtype::bf16:
      return numeric::to_float(numeric::bf16{load<std::uint16_t>(p)});
    case dtype::f16:
      return numeric::to_float(numeric::f16{load<std::uint16_t>(p)});
    case dtype::e4m3:
      return numeric::to_float(numeric::e4m3{*p});
    case dtype::e4m3fnuz:
      return numeric::to_float(numeric::e4m3fnuz{*p});
    case dtype::e5m2:
      return numeric::to_float(numeric::e5m2{*p});
    case dtype::i8:
      return load<std::int8_t>(p);
    case dtype::i16:
      return load<std::int16_t>(p);
    case dtype::i32:
      return load<std::int32_t>(p);
    case dtype::i64:
      return static_cast<double>(load<std::int64_t>(p));
    case dtype::u32:
      return load<std::uint32_t>(p);
    default:
      return *p;
  }
}

bool is_nan_element(dtype type, const unsigned char* p) {
  switch (type) {
    case dtype::f32:
    case dtype::f64:
    case dtype::bf16:
    case dtype::f16:
    case dtype::e4m3:
    case dtype::e4m3fnuz:
    case dtype::e5m2:
      return std::isnan(number(type, p));
    default:
      return false;
  }
}

// Position among the representable values in order, both zeros being one.
std::int64_t rank_of(dtype type, const unsigned char* p) {
  if (type == dtype::f32) {
    const auto u = load<std::uint32_t>(p);
    const std::int64_t magnitude = u & 0x7FFFFFFFu;
    return u >> 31 ? -magnitude : magnitude;
  }
  const auto u = load<std::uint16_t>(p);
  const std::int64_t magnitude = u & 0x7FFFu;
  return u >> 15 ? -magnitude : magnitude;
}

int code_rank(unsigned code, unsigned sign_bit) {
  const int magnitude = static_cast<int>(code & (sign_bit - 1));
  return code & sign_bit ? -magnitude : magnitude;
}

class comparator {
 public:
  comparator(const comparison& how, const array_view& expected, const array_view& got, const row_mask* rows,
             const row_mask* exact_rows)
      : how_(how),
        expected_(expected),
        got_(got),
        rows_(rows),
        exact_rows_(exact_rows),
        size_(size_of(expected.type)),
        count_(product(expected.shape)) {}

  std::optional<difference> run() const {
    switch (how_.kind) {
      case compare_kind::bits:
        return each([&](std::int64_t i) { return bits(i); });
      case compare_kind::close:
        return each([&](std::int64_t i) {
          return counts(exact_rows_, expected_.shape, i) && exact_rows_ ? same(i) : close(i);
        });
      case compare_kind::close_rowmax:
        return each([&](std::int64_t i) { return close_rowmax(i); });
      case compare_kind::ulp:
        return each([&](std::int64_t i) { return ulp(i); });
      case compare_kind::code_rank:
        return ranks();
      case compare_kind::calc_diff:
        return calc_diff();
    }
    return {};
  }

 private:
  const unsigned char* e(std::int64_t i) const { return expected_.bytes.data() + i * size_; }
  const unsigned char* g(std::int64_t i) const { return got_.bytes.data() + i * size_; }
  double expected(std::int64_t i) const { return number(expected_.type, e(i)); }
  double got(std::int64_t i) const { return number(got_.type, g(i)); }
  bool same(std::int64_t i) const { return std::memcmp(e(i), g(i), static_cast<std::size_t>(size_)) == 0; }
  bool counted(std::int64_t i) const { return counts(rows_, expected_.shape, i); }

  bool bits(std::int64_t i) const {
    return same(i) ||
           (how_.any_nan && is_nan_element(expected_.type, e(i)) && is_nan_element(got_.type, g(i)));
  }
  bool close(std::int64_t i) const {
    return std::abs(got(i) - expected(i)) <= how_.atol + how_.rtol * std::abs(expected(i));
  }
  // max |golden| of the row (last dimension) that element i is in.
  double row_max(std::int64_t i) const {
    const std::int64_t n = expected_.shape.empty() ? 1 : expected_.shape.back();
    double m = 0;
    for (std::int64_t j = i / n * n; j < i / n * n + n; ++j) m = std::fmax(m, std::abs(expected(j)));
    return m;
  }
  bool close_rowmax(std::int64_t i) const {
    return std::abs(got(i) - expected(i)) <=
           how_.rtol * std::abs(expected(i)) + how_.atol_times_rowmax * row_max(i);
  }
  bool ulp(std::int64_t i) const {
    if (is_nan_element(expected_.type, e(i)) || is_nan_element(got_.type, g(i))) return same(i);
    const auto apart =
        static_cast<double>(std::abs(rank_of(expected_.type, e(i)) - rank_of(got_.type, g(i))));
    return apart <= how_.max || (how_.or_atol_times_rowmax &&
                                 std::abs(got(i) - expected(i)) <= *how_.or_atol_times_rowmax * row_max(i));
  }

  template <class F>
  std::optional<difference> each(F passes) const {
    std::int64_t first = -1, bad = 0, total = 0;
    for (std::int64_t i = 0; i < count_; ++i) {
      if (!counted(i)) continue;
      ++total;
      if (passes(i)) continue;
      if (bad++ == 0) first = i;
    }
    if (bad == 0) return {};
    return difference_at(expected_, got_, first,
                         fmt::format("{} of {} elements differ{}", bad, total, bound()));
  }

  std::string bound() const {
    switch (how_.kind) {
      case compare_kind::close:
        return fmt::format(" by more than {} + {}*|golden|", how_.atol, how_.rtol);
      case compare_kind::close_rowmax:
        return fmt::format(" by more than {}*|golden| + {}*max|golden| of the row", how_.rtol,
                           how_.atol_times_rowmax);
      case compare_kind::ulp:
        return fmt::format(" by more than {} representable values", how_.max);
      default:
        return {};
    }
  }

  std::optional<difference> ranks() const {
    const bool pairs = expected_.type == dtype::e2m1x2;
    std::int64_t first_far = -1, first = -1, differing = 0, total = 0;
    for (std::int64_t i = 0; i < count_; ++i) {
      if (!counted(i)) continue;
      for (int half = 0; half < (pairs ? 2 : 1); ++half) {
        const int shift = 4 * half;
        const int a = pairs ? code_rank((*e(i) >> shift) & 0xFu, 8) : code_rank(*e(i), 128);
        const int b = pairs ? code_rank((*g(i) >> shift) & 0xFu, 8) : code_rank(*g(i), 128);
        ++total;
        if (a == b) continue;
        ++differing;
        if (first < 0) first = i;
        if (std::abs(a - b) > how_.max && first_far < 0) first_far = i;
      }
    }
    if (first_far >= 0)
      return difference_at(expected_, got_, first_far, fmt::format("ranks differ by more than {}", how_.max));
    if (static_cast<double>(differing) > how_.max_fraction * static_cast<double>(total))
      return difference_at(expected_, got_, first,
                           fmt::format("{} of {} codes differ, more than the fraction {}", differing, total,
                                       how_.max_fraction));
    return {};
  }

  std::optional<difference> calc_diff() const {
    double apart = 0, size = 0, worst = -1;
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < count_; ++i) {
      if (!counted(i)) continue;
      const double a = expected(i), b = got(i), d = (a - b) * (a - b);
      apart += d;
      size += a * a + b * b;
      if (d > worst || std::isnan(d)) worst = d, at = i;
    }
    const double diff = size == 0 ? 0 : apart / size;
    if (diff < how_.below) return {};
    return difference_at(
        expected_, got_, at,
        fmt::format("calc_diff is {}, must be below {}; the worst element is shown", diff, how_.below));
  }

  const comparison& how_;
  const array_view &expected_, &got_;
  const row_mask *rows_, *exact_rows_;
  std::int64_t size_, count_;
};

}  // namespace

bool counts(const row_mask* mask, std::span<const std::int64_t> shape, std::int64_t element) {
  if (!mask) return true;
  return mask->bytes[static_cast<std::size_t>(
             element / std::max<std::int64_t>(1, product(shape.subspan(mask->shape.size()))))] != 0;
}

std::vector<std::int64_t> coordinates(std::span<const std::int64_t> shape, std::int64_t element) {
  std::vector<std::int64_t> c(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    c[d] = element % shape[d];
    element /= shape[d];
  }
  return c;
}

std::string value_text(dtype type, const unsigned char* p) {
  switch (type) {
    case dtype::f32:
      return fmt::format("{}", load<float>(p));
    case dtype::f64:
      return fmt::format("{}", load<double>(p));
    case dtype::bf16:
    case dtype::f16:
    case dtype::e4m3:
    case dtype::e4m3fnuz:
    case dtype::e5m2:
      return fmt::format("{}", static_cast<float>(number(type, p)));
    case dtype::e2m1x2:
      return fmt::format("({}, {})", numeric::e2m1_to_float(*p & 0xFu),
                         numeric::e2m1_to_float(static_cast<std::uint8_t>(*p >> 4)));
    case dtype::ue8m0x4:
      return fmt::format("exponents ({}, {}, {}, {})", p[0], p[1], p[2], p[3]);
    case dtype::e5m6x8:
      return fmt::format("byte {}", *p);
    case dtype::boolean:
      return *p == 0 ? "false" : *p == 1 ? "true" : fmt::format("bool with value {}", *p);
    case dtype::i64:
      return fmt::format("{}", load<std::int64_t>(p));
    default:
      return fmt::format("{:.0f}", number(type, p));
  }
}

std::string bits_text(dtype type, const unsigned char* p) {
  std::string s = "0x";
  for (std::int64_t i = size_of(type); i-- > 0;) s += fmt::format("{:02x}", p[i]);
  return s;
}

difference difference_at(const array_view& expected, const array_view& got, std::int64_t element,
                         std::string text) {
  const std::int64_t at = element * size_of(expected.type);
  const unsigned char *e = expected.bytes.data() + at, *g = got.bytes.data() + at;
  return {coordinates(expected.shape, element), value_text(expected.type, e), value_text(got.type, g),
          bits_text(expected.type, e),          bits_text(got.type, g),       std::move(text)};
}

std::optional<difference> compare(const comparison& how, const array_view& expected, const array_view& got,
                                  const row_mask* rows, const row_mask* exact_rows) {
  const auto fits = [&](const row_mask* m) {
    return !m || (m->shape.size() <= expected.shape.size() &&
                  std::equal(m->shape.begin(), m->shape.end(), expected.shape.begin()) &&
                  static_cast<std::int64_t>(m->bytes.size()) == product(m->shape));
  };
  if (expected.type != got.type ||
      !std::equal(expected.shape.begin(), expected.shape.end(), got.shape.begin(), got.shape.end()) ||
      expected.bytes.size() != got.bytes.size())
    throw error(status_code::internal, "compare: the arrays differ in type or shape");
  if (!fits(rows) || !fits(exact_rows))
    throw error(status_code::invalid_argument, "the mask does not fit the array");
  return comparator(how, expected, got, rows, exact_rows).run();
}

}  // namespace portile::golden
