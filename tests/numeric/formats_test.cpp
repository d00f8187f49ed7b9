#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/e2m1.hpp>
#include <portile/core/numeric/e4m3.hpp>
#include <portile/core/numeric/e4m3fnuz.hpp>
#include <portile/core/numeric/e5m2.hpp>
#include <portile/core/numeric/e5m6.hpp>
#include <portile/core/numeric/f16.hpp>
#include <portile/core/numeric/tf32.hpp>

#include <algorithm>
#include <type_traits>

#include "oracle.hpp"
#include "support/catch.hpp"

namespace n = portile::numeric;

namespace {

// One name per conversion, on plain integers, for the oracle.
std::uint32_t bf16_code(float x) { return n::to_bf16(x).bits; }
std::uint32_t f16_code(float x) { return n::to_f16(x).bits; }
std::uint32_t e4m3_code(float x) { return n::to_e4m3(x).bits; }
std::uint32_t e4m3fnuz_code(float x) { return n::to_e4m3fnuz(x).bits; }
std::uint32_t e5m2_code(float x) { return n::to_e5m2(x).bits; }
std::uint32_t e2m1_code(float x) { return n::to_e2m1(x); }
std::uint32_t e5m6_nearest_code(float x) { return n::to_e5m6_nearest(x); }

float bf16_value(std::uint32_t c) { return n::to_float(n::bf16{static_cast<std::uint16_t>(c)}); }
float f16_value(std::uint32_t c) { return n::to_float(n::f16{static_cast<std::uint16_t>(c)}); }
float e4m3_value(std::uint32_t c) { return n::to_float(n::e4m3{static_cast<std::uint8_t>(c)}); }
float e4m3fnuz_value(std::uint32_t c) { return n::to_float(n::e4m3fnuz{static_cast<std::uint8_t>(c)}); }
float e5m2_value(std::uint32_t c) { return n::to_float(n::e5m2{static_cast<std::uint8_t>(c)}); }
float e2m1_value(std::uint32_t c) { return n::e2m1_to_float(static_cast<std::uint8_t>(c)); }
float e5m6_value(std::uint32_t c) { return n::e5m6_to_float(static_cast<std::uint16_t>(c)); }

}  // namespace

// The conversions are usable in constant expressions.
static_assert(n::to_bf16(1.0f).bits == 0x3F80 && n::to_float(n::bf16{0xC000}) == -2.0f);
static_assert(n::to_f16(65520.0f).bits == 0x7C00 && n::to_f16_rtz(65520.0f).bits == 0x7BFF);
static_assert(n::to_e4m3(1000.0f).bits == 0x7E && n::to_float(n::e4m3{0x01}) == 0x1p-9f);
static_assert(n::to_e4m3fnuz(-0.0f).bits == 0x00 && n::to_float(n::e4m3fnuz{0x7F}) == 240.0f);
static_assert(n::to_e5m2(1e9f).bits == 0x7B && n::to_float(n::e5m2{0x01}) == 0x1p-16f);
static_assert(n::to_e2m1(-0.75f) == 10 && n::e2m1_to_float(7) == 6.0f);
static_assert(n::to_e5m6(65024.0f) == 0x7BF && n::e5m6_to_float(1) == 0x1p-20f);
static_assert(n::to_tf32_nearest(0x1.002p0f) == 0x1.004p0f && n::to_tf32_truncate(0x1.003ffep0f) == 0x1p0f);
static_assert(n::e2m1x2{0x7A}.low() == 0xA && n::e2m1x2{0x7A}.high() == 0x7);
static_assert(std::is_trivial_v<n::bf16> && std::is_trivial_v<n::e4m3> && std::is_trivial_v<n::ue8m0x4>);
static_assert(n::bf16{0x0000} != n::bf16{0x8000} && n::e4m3{0x7F} == n::e4m3{0x7F});

TEST_CASE("every encoder rounds to the nearest code, ties to even", "[numeric]") {
  SECTION("bf16") { oracle::check_encoder(oracle::bf16(), bf16_code); }
  SECTION("f16") { oracle::check_encoder(oracle::f16(), f16_code); }
  SECTION("e4m3") { oracle::check_encoder(oracle::e4m3(), e4m3_code); }
  SECTION("e4m3fnuz") { oracle::check_encoder(oracle::e4m3fnuz(), e4m3fnuz_code); }
  SECTION("e5m2") { oracle::check_encoder(oracle::e5m2(), e5m2_code); }
  SECTION("e2m1") { oracle::check_encoder(oracle::e2m1(), e2m1_code); }
  SECTION("e5m6, nearest") { oracle::check_encoder(oracle::e5m6(), e5m6_nearest_code); }
}

TEST_CASE("every finite code decodes to its value and encodes back", "[numeric]") {
  SECTION("bf16") { oracle::check_finite_codes(oracle::bf16(), bf16_value, bf16_code); }
  SECTION("f16") { oracle::check_finite_codes(oracle::f16(), f16_value, f16_code); }
  SECTION("e4m3") { oracle::check_finite_codes(oracle::e4m3(), e4m3_value, e4m3_code); }
  SECTION("e4m3fnuz") { oracle::check_finite_codes(oracle::e4m3fnuz(), e4m3fnuz_value, e4m3fnuz_code); }
  SECTION("e5m2") { oracle::check_finite_codes(oracle::e5m2(), e5m2_value, e5m2_code); }
  SECTION("e2m1") { oracle::check_finite_codes(oracle::e2m1(), e2m1_value, e2m1_code); }
  SECTION("e5m6, nearest") { oracle::check_finite_codes(oracle::e5m6(), e5m6_value, e5m6_nearest_code); }
  SECTION("e5m6") {
    oracle::check_finite_codes(oracle::e5m6(), e5m6_value,
                               [](float x) -> std::uint32_t { return n::to_e5m6(x); });
  }
}

TEST_CASE("codes without a finite value decode to Inf or NaN", "[numeric]") {
  for (std::uint32_t sign : {0u, 0x80u}) {
    CHECK(std::isnan(e4m3_value(sign | 0x7F)));
    CHECK(std::isinf(e5m2_value(sign | 0x7C)));
    CHECK(std::signbit(e5m2_value(sign | 0x7C)) == (sign != 0));
    for (std::uint32_t c : {0x7Du, 0x7Eu, 0x7Fu}) CHECK(std::isnan(e5m2_value(sign | c)));
  }
  CHECK(std::isnan(e4m3fnuz_value(0x80)));
  for (std::uint32_t c = 0x7C0; c <= 0x7FF; ++c) {
    for (std::uint32_t sign : {0u, 0x800u}) {
      const float x = e5m6_value(sign | c);
      CHECK((c == 0x7C0 ? std::isinf(x) && std::signbit(x) == (sign != 0) : std::isnan(x)));
    }
  }
  for (std::uint32_t c = 0x7C00; c <= 0x7FFF; ++c) {
    if (c == 0x7C00 ? std::isinf(f16_value(c)) && f16_value(0x8000 | c) == -HUGE_VALF
                    : std::isnan(f16_value(c)))
      continue;
    FAIL("f16 code " << c);
  }
}

TEST_CASE("saturation and special inputs, by hand", "[numeric]") {
  const float inf = HUGE_VALF;
  for (float x : {448.0f, 449.0f, 464.0f, 465.0f, 480.0f, 1e38f, inf}) {
    CHECK(e4m3_code(x) == 0x7E);
    CHECK(e4m3_code(-x) == 0xFE);
  }
  CHECK(e4m3_code(std::nanf("")) == 0x7F);
  CHECK(e4m3_code(-std::nanf("")) == 0x7F);
  CHECK(e4m3_code(-0.0f) == 0x80);
  CHECK(e4m3_code(-1e-30f) == 0x80);
  CHECK(e4m3_code(0x1p-10f) == 0x00);
  CHECK(e4m3_code(0x1.000002p-10f) == 0x01);

  CHECK(e4m3fnuz_code(inf) == 0x7F);
  CHECK(e4m3fnuz_code(-inf) == 0xFF);
  CHECK(e4m3fnuz_code(-1e-30f) == 0x00);
  CHECK(e4m3fnuz_code(std::nanf("")) == 0x80);

  CHECK(e5m2_code(inf) == 0x7B);
  CHECK(e5m2_code(61440.0f) == 0x7B);
  CHECK(e5m2_code(-inf) == 0xFB);

  CHECK(n::to_bf16(n::fp32_max).bits == 0x7F80);
  CHECK(n::to_bf16(-std::nanf("")).bits == 0x7FC0);

  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const std::uint32_t at_tie[] = {0, 2, 2, 4, 4, 6, 6};
  for (std::uint32_t i = 0; i < 7; ++i) {
    CHECK(e2m1_code(ties[i]) == at_tie[i]);
    CHECK(e2m1_code(std::nextafterf(ties[i], 0.0f)) == i);
    CHECK(e2m1_code(std::nextafterf(ties[i], 10.0f)) == i + 1);
    CHECK(e2m1_code(-ties[i]) == (8 | at_tie[i]));
  }
  CHECK(e2m1_code(-std::nanf("")) == 7);
  CHECK(e2m1_code(-inf) == 15);
}

TEST_CASE("f16 toward zero never rounds away from zero", "[numeric]") {
  const oracle::format f = oracle::f16();
  oracle::mismatches wrong;
  for (std::uint32_t b = 0; b <= 0xFFFF; ++b) {
    for (std::uint32_t low :
         {0u, 1u, 0x8000u, 0xFFFFu}) {  // bf16 values have few mantissa bits: vary the rest too
      const float x = oracle::from_bits((b << 16) | low);
      if (std::isnan(x)) {
        wrong.compare(x, n::to_f16_rtz(x).bits, 0x7E00);
        continue;
      }
      const double a = std::fabs(static_cast<double>(x));
      std::uint32_t expected = std::isinf(x) ? 0x7C00 : 0x7BFF;
      if (a <= f.magnitudes.back()) {
        expected = static_cast<std::uint32_t>(std::upper_bound(f.magnitudes.begin(), f.magnitudes.end(), a) -
                                              f.magnitudes.begin() - 1);
      }
      wrong.compare(x, n::to_f16_rtz(x).bits, expected | (std::signbit(x) ? 0x8000u : 0u));
    }
  }
  wrong.require_none();
}

TEST_CASE("e5m6 is nearest-even for normals and follows its own rule below", "[numeric]") {
  const oracle::format f = oracle::e5m6();
  oracle::mismatches wrong;
  const auto both = [&](float x) {
    wrong.compare(x, n::to_e5m6(x), oracle::nearest(f, x));
    wrong.compare(-x, n::to_e5m6(-x), oracle::nearest(f, -x));
  };
  for (std::size_t i = 64; i < f.magnitudes.size(); ++i) {
    const double next = i + 1 < f.magnitudes.size() ? f.magnitudes[i + 1] : 65536.0;
    for (double v : {f.magnitudes[i], (f.magnitudes[i] + next) / 2}) {
      const auto x = static_cast<float>(v);
      both(x);
      both(std::nextafterf(x, HUGE_VALF));
      if (x > 0x1p-14f) both(std::nextafterf(x, 0.0f));
    }
  }
  wrong.require_none();

  // In units of the smallest subnormal; nearest would give 3, 4, 64, 1.
  const float unit = 0x1p-20f;
  CHECK(n::to_e5m6(2.75f * unit) == 2);
  CHECK(n::to_e5m6(3.5f * unit) == 3);
  CHECK(n::to_e5m6(63.6f * unit) == 63);
  CHECK(n::to_e5m6(0.75f * unit) == 0);
  CHECK(n::to_e5m6_nearest(2.75f * unit) == 3);
  CHECK(n::to_e5m6_nearest(3.5f * unit) == 4);
  CHECK(n::to_e5m6_nearest(63.6f * unit) == 64);
  CHECK(n::to_e5m6_nearest(0.75f * unit) == 1);
  // The upward step depends on the low 17 bits, here far below half a unit: from 1 (odd) at 0x10000, from 2
  // above that.
  CHECK(n::to_e5m6(oracle::from_bits(0x3580FFFFu)) == 1);
  CHECK(n::to_e5m6(oracle::from_bits(0x35810000u)) == 2);
  CHECK(n::to_e5m6(oracle::from_bits(0x36010000u)) == 2);
  CHECK(n::to_e5m6(oracle::from_bits(0x36010001u)) == 3);

  // Never further away than the neighbours of x.
  for (std::uint32_t u = 0x35000000u; u < 0x38800000u; u += 7919) {
    const float x = oracle::from_bits(u);
    const auto floor = static_cast<std::uint32_t>(x / unit);
    const std::uint32_t got = n::to_e5m6(x);
    if (got != floor && got != floor + 1) FAIL("input " << x << " code " << got);
  }

  CHECK(n::to_e5m6(HUGE_VALF) == 0x7BF);
  CHECK(n::to_e5m6(-1e30f) == 0xFBF);
  CHECK(n::to_e5m6(65535.0f) == 0x7BF);
  CHECK(n::to_e5m6(-0.0f) == 0x800);
  CHECK(n::to_e5m6(std::nanf("")) == 0x7E0);
}

TEST_CASE("e5m6 packing is a big-endian bit string in little-endian words", "[numeric]") {
  const std::uint16_t codes[8] = {0x123, 0x456, 0x789, 0xABC, 0xDEF, 0x012, 0x345, 0x678};
  // Words 12345678 9ABCDEF0 12345678.
  const std::uint8_t expected[12] = {0x78, 0x56, 0x34, 0x12, 0xF0, 0xDE, 0xBC, 0x9A, 0x78, 0x56, 0x34, 0x12};
  std::uint8_t bytes[12] = {};
  n::pack_e5m6x8(codes, bytes);
  CHECK(std::memcmp(bytes, expected, 12) == 0);

  for (std::uint32_t code = 0; code < 4096; ++code) {
    std::uint16_t in[8], out[8];
    for (std::uint32_t i = 0; i < 8; ++i)
      in[i] = static_cast<std::uint16_t>((code * (2 * i + 1) + 97 * i) & 0xFFF);
    n::pack_e5m6x8(in, bytes);
    n::unpack_e5m6x8(bytes, out);
    if (std::memcmp(in, out, sizeof in) != 0) FAIL("code " << code);
  }
}

TEST_CASE("e2m1 pairs hold the even element in the low nibble", "[numeric]") {
  for (int byte = 0; byte < 256; ++byte) {
    const n::e2m1x2 pair{static_cast<std::uint8_t>(byte)};
    if (n::unpack_e2m1x2(pair, 0) != byte % 16 || n::unpack_e2m1x2(pair, 1) != byte / 16)
      FAIL("byte " << byte);
    if (!(n::pack_e2m1x2(pair.low(), pair.high()) == pair)) FAIL("byte " << byte);
  }
  CHECK(n::to_e2m1x2(1.0f, -6.0f).bits == 0xF2);
}

TEST_CASE("tf32 rounds ties away from zero and keeps Inf and NaN", "[numeric]") {
  oracle::mismatches wrong;
  for (std::uint32_t b = 0; b <= 0xFFFF; ++b) {
    for (std::uint32_t low :
         {0x0000u, 0x0FFFu, 0x1000u, 0x1001u, 0x1FFFu, 0x2000u, 0x6FFFu, 0x7000u, 0xF000u, 0xFFFFu}) {
      const float x = oracle::from_bits((b << 16) | low);
      if (!std::isfinite(x)) {
        wrong.compare(x, oracle::to_bits(n::to_tf32_nearest(x)), oracle::to_bits(x));
        wrong.compare(x, oracle::to_bits(n::to_tf32_truncate(x)), oracle::to_bits(x));
        continue;
      }
      // In double: units of the tf32 grid at x, rounded half away from zero or toward zero.
      int exponent = 0;
      std::frexp(x, &exponent);
      const double unit = std::ldexp(1.0, std::max(exponent - 1, -126) - 10);
      wrong.compare_values(x, n::to_tf32_nearest(x), static_cast<float>(std::round(x / unit) * unit));
      wrong.compare_values(x, n::to_tf32_truncate(x), static_cast<float>(std::trunc(x / unit) * unit));
    }
  }
  wrong.require_none();
  CHECK(n::to_tf32_nearest(n::fp32_max) == HUGE_VALF);
  CHECK(n::to_tf32_nearest(-n::fp32_max) == -HUGE_VALF);
}
