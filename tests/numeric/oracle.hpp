#pragma once

// An oracle for the narrow formats that shares nothing with the code under test: the list of a format's
// magnitudes, from the definition of the format, and a search for the nearest one in double precision.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace oracle {

inline float from_bits(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

inline std::uint32_t to_bits(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}

// A bf16 as fp32, the input of every exhaustive test.
inline float bf16_value(std::uint32_t bits) { return from_bits(bits << 16); }

struct format {
  std::vector<double> magnitudes;  // finite, ascending; the index is the code without sign
  int sign_shift;                  // bit of the sign
  std::uint32_t nan;               // code of an encoded NaN
  std::uint32_t overflow;          // code (without sign) of what rounds beyond the largest magnitude
  double overflow_step;            // spacing above the largest magnitude, to find the tie there
  bool negative_zero = true;
};

// Magnitudes (exponent, mantissa) of a format, up to and including code `last`.
inline std::vector<double> magnitudes(int mantissa_bits, int bias, std::uint32_t last) {
  std::vector<double> values;
  for (std::uint32_t code = 0; code <= last; ++code) {
    const int exponent = static_cast<int>(code >> mantissa_bits);
    const double fraction = static_cast<double>(code & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
    values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                   : std::ldexp(1 + fraction, exponent - bias));
  }
  return values;
}

inline format make(int mantissa_bits, int bias, std::uint32_t last, int sign_shift, std::uint32_t nan,
                   std::uint32_t overflow) {
  format f{magnitudes(mantissa_bits, bias, last), sign_shift, nan, overflow, 0};
  f.overflow_step = f.magnitudes[last] - f.magnitudes[last - 1];
  return f;
}

inline format bf16() { return make(7, 127, 0x7F7F, 15, 0x7FC0, 0x7F80); }
inline format f16() { return make(10, 15, 0x7BFF, 15, 0x7E00, 0x7C00); }
inline format e4m3() { return make(3, 7, 0x7E, 7, 0x7F, 0x7E); }
inline format e5m2() { return make(2, 15, 0x7B, 7, 0x7F, 0x7B); }
inline format e5m6() { return make(6, 15, 0x7BF, 11, 0x7E0, 0x7BF); }

inline format e4m3fnuz() {
  format f = make(3, 8, 0x7F, 7, 0x80, 0x7F);
  f.negative_zero = false;
  return f;
}

// Written out, because there are so few.
inline format e2m1() { return {{0, 0.5, 1, 1.5, 2, 3, 4, 6}, 3, 7, 7, 2}; }

// Nearest code, ties to the even code. A saturating format has overflow == its last code.
inline std::uint32_t nearest(const format& f, float x) {
  if (std::isnan(x)) return f.nan;
  const double a = std::fabs(static_cast<double>(x));
  const auto last = static_cast<std::uint32_t>(f.magnitudes.size() - 1);
  std::uint32_t code = 0;
  if (a > f.magnitudes[last]) {
    const double above = f.magnitudes[last] + f.overflow_step;
    const double below_gap = a - f.magnitudes[last], above_gap = above - a;
    const bool up = below_gap > above_gap || (below_gap == above_gap && last % 2 == 1);
    code = up || std::isinf(x) ? f.overflow : last;
  } else {
    std::uint32_t high = last;  // smallest code with magnitude >= a, by bisection
    for (std::uint32_t low = 0; low < high;) {
      const std::uint32_t middle = (low + high) / 2;
      if (f.magnitudes[middle] >= a)
        high = middle;
      else
        low = middle + 1;
    }
    code = high;
    if (high > 0 && f.magnitudes[high] != a) {
      const double down = a - f.magnitudes[high - 1], up = f.magnitudes[high] - a;
      if (down < up || (down == up && (high - 1) % 2 == 0)) code = high - 1;
    }
  }
  if (std::signbit(x) && (code != 0 || f.negative_zero)) code |= 1u << f.sign_shift;
  return code;
}

// Counts what differs and keeps the first difference, so that an exhaustive loop makes one assertion.
class mismatches {
 public:
  void compare(float input, std::uint32_t got, std::uint32_t expected) {
    if (got == expected) return;
    if (count_++ == 0) {
      char text[128];
      std::snprintf(text, sizeof text, "input %a (0x%08X): got 0x%X, expected 0x%X",
                    static_cast<double>(input), to_bits(input), got, expected);
      first_ = text;
    }
  }
  // Values as bits, any NaN equal to any NaN.
  void compare_values(float input, float got, float expected) {
    if (std::isnan(got) && std::isnan(expected)) return;
    compare(input, to_bits(got), to_bits(expected));
  }
  void require_none() const {
    INFO(count_ << " differences, the first: " << first_);
    REQUIRE(count_ == 0);
  }

 private:
  long count_ = 0;
  std::string first_;
};

// All 65,536 bf16 inputs; then, for every pair of neighbouring magnitudes (and the step beyond the largest),
// the tie point, both codes' values and the fp32 neighbours of all these, with both signs; then the specials.
template <class Encode>
void check_encoder(const format& f, Encode encode) {
  mismatches wrong;
  const auto both_signs = [&](float x) {
    wrong.compare(x, encode(x), nearest(f, x));
    wrong.compare(-x, encode(-x), nearest(f, -x));
  };
  for (std::uint32_t b = 0; b <= 0xFFFF; ++b) {
    const float x = bf16_value(b);
    wrong.compare(x, encode(x), nearest(f, x));
  }
  const auto around = [&](double value) {
    const float x = static_cast<float>(value);
    both_signs(x);
    both_signs(std::nextafterf(x, 0.0f));
    both_signs(std::nextafterf(x, HUGE_VALF));
  };
  for (std::size_t i = 0; i < f.magnitudes.size(); ++i) {
    const bool top = i + 1 == f.magnitudes.size();
    const double next = top ? f.magnitudes[i] + f.overflow_step : f.magnitudes[i + 1];
    around(f.magnitudes[i]);
    around((f.magnitudes[i] + next) / 2);
  }
  for (std::uint32_t u :
       {0x00000001u, 0x007FFFFFu, 0x00800000u, 0x7F7FFFFFu, 0x7F800000u, 0x7F800001u, 0x7FC00000u}) {
    wrong.compare(from_bits(u), encode(from_bits(u)), nearest(f, from_bits(u)));
    wrong.compare(from_bits(u | 0x80000000u), encode(from_bits(u | 0x80000000u)),
                  nearest(f, from_bits(u | 0x80000000u)));
  }
  wrong.require_none();
}

// Every finite code decodes to its magnitude and encodes back to itself.
template <class Decode, class Encode>
void check_finite_codes(const format& f, Decode decode, Encode encode) {
  mismatches wrong;
  for (std::uint32_t code = 0; code < f.magnitudes.size(); ++code) {
    const auto value = static_cast<float>(f.magnitudes[code]);
    const std::uint32_t negative = code | (1u << f.sign_shift);
    wrong.compare(value, to_bits(decode(code)), to_bits(value));
    wrong.compare(value, encode(value), code);
    if (code == 0 && !f.negative_zero) continue;
    wrong.compare(-value, to_bits(decode(negative)), to_bits(-value));
    wrong.compare(-value, encode(-value), negative);
  }
  wrong.require_none();
}

}  // namespace oracle
