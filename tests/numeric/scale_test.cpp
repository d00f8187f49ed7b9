#include <portile/core/numeric/scale.hpp>

#include "oracle.hpp"
#include "support/catch.hpp"

namespace n = portile::numeric;

static_assert(n::scale_power_of_two(448.0f, n::clamp_e4m3, n::max_e4m3).sf == 1.0f);
static_assert(n::scale_plain(896.0f, n::clamp_e4m3, n::max_e4m3).sf_inv == 0.5f);
static_assert(n::scale_e4m3(0.0f, n::clamp_e4m3_with_e4m3_sf, n::max_e4m3).sf_inv == 512.0f);
static_assert(n::amax_step(1.0f, -2.0f) == 2.0f);
static_assert(n::power_of_two_exponent_ceil(1.0f) == 127 && n::is_power_of_two_scale(0.25f));
static_assert(n::pack_ue8m0x4(1, 2, 3, 4).byte(3) == 4);

namespace {

// The definition, in double: the smallest 2^(e - 127) >= s with 1 <= e <= 254.
int exponent_by_search(float s) {
  int e = 1;
  while (e < 254 && std::ldexp(1.0, e - 127) < static_cast<double>(s)) ++e;
  return e;
}

struct target {
  float max_q, clamp;
};

const target targets[] = {
    {n::max_e4m3, n::clamp_e4m3}, {n::max_e2m1, n::clamp_e2m1}, {n::max_e5m6, n::clamp_e5m6}};

}  // namespace

TEST_CASE("ue8m0 bytes decode by both rules", "[numeric]") {
  oracle::mismatches wrong;
  for (int b = 1; b <= 254; ++b) {
    const auto value = static_cast<float>(std::ldexp(1.0, b - 127));
    const auto byte = static_cast<std::uint8_t>(b);
    wrong.compare_values(value, n::ue8m0_to_float(byte), value);
    wrong.compare_values(value, n::ue8m0_to_float_ocp(byte), value);
    wrong.compare(value, n::exponent_field(value), static_cast<std::uint32_t>(b));
    wrong.compare(value, n::power_of_two_exponent_ceil(value), static_cast<std::uint32_t>(b));
  }
  wrong.require_none();
  CHECK(oracle::to_bits(n::ue8m0_to_float(0)) == 0);
  CHECK(n::ue8m0_to_float(255) == HUGE_VALF);
  CHECK(n::ue8m0_to_float_ocp(0) == std::ldexp(1.0f, -127));
  CHECK(std::isnan(n::ue8m0_to_float_ocp(255)));

  n::ue8m0x4 four = n::pack_ue8m0x4(0x11, 0x22, 0x33, 0x44);
  CHECK(four.bits == 0x44332211u);
  four.set_byte(2, 0xFF);
  CHECK(four.bits == 0x44FF2211u);
  CHECK(four.byte(0) == 0x11);
  CHECK(four.byte(2) == 0xFF);
}

TEST_CASE("the exponent is rounded up at every power of two and its neighbours", "[numeric]") {
  oracle::mismatches wrong;
  for (int k = -149; k <= 127; ++k) {
    const auto s = static_cast<float>(std::ldexp(1.0, k));
    for (float x : {std::nextafterf(s, 0.0f), s, std::nextafterf(s, HUGE_VALF)}) {
      wrong.compare(x, n::power_of_two_exponent_ceil(x), static_cast<std::uint32_t>(exponent_by_search(x)));
    }
  }
  for (std::uint32_t b = 0; b < 0x7F80; ++b) {
    const float x = oracle::bf16_value(b);
    wrong.compare(x, n::power_of_two_exponent_ceil(x), static_cast<std::uint32_t>(exponent_by_search(x)));
  }
  wrong.require_none();
  CHECK(n::power_of_two_exponent_ceil(n::fp32_max) == 254);
  CHECK(n::power_of_two_exponent_ceil(HUGE_VALF) == 254);
  CHECK(n::power_of_two_exponent_ceil(std::nanf("")) == 254);
  CHECK(n::power_of_two_exponent_ceil(-0.0f) == 1);
  CHECK(n::power_of_two_exponent_ceil(-3.0f) == 1);
  CHECK(n::power_of_two_exponent_ceil(0.006975f) == 0x78);
}

TEST_CASE("only what a byte can hold counts as a power-of-two scale", "[numeric]") {
  for (int b = 0; b < 256; ++b)
    CHECK(n::is_power_of_two_scale(n::ue8m0_to_float(static_cast<std::uint8_t>(b))));
  for (float x : {3.0f, -1.0f, -0.0f, 1.0000001f, 0x1p-127f, 0x1p-149f, std::nanf("")}) {
    CHECK_FALSE(n::is_power_of_two_scale(x));
  }
}

TEST_CASE("scales of an all-zero block", "[numeric]") {
  const n::scale e4m3 = n::scale_plain(0.0f, n::clamp_e4m3, n::max_e4m3);
  CHECK(oracle::to_bits(n::clamp_e4m3) == 0x38D1B717u);
  CHECK(oracle::to_bits(e4m3.sf) == 0x346FACADu);
  CHECK(oracle::to_bits(e4m3.sf_inv) == 0x4A88B800u);
  CHECK(n::scale_power_of_two(0.0f, n::clamp_e4m3, n::max_e4m3).exponent == 105);

  CHECK(oracle::to_bits(n::clamp_e2m1) == 0x01C00000u);
  const n::scale e2m1 = n::scale_power_of_two(0.0f, n::clamp_e2m1, n::max_e2m1);
  CHECK(e2m1.exponent == 1);
  CHECK(e2m1.sf == std::ldexp(1.0f, -126));
  CHECK(e2m1.sf_inv == std::ldexp(1.0f, 126));
  CHECK(n::scale_plain(0.0f, n::clamp_e2m1, n::max_e2m1).sf == std::ldexp(1.0f, -126));

  const n::scale e5m6 = n::scale_plain(0.0f, n::clamp_e5m6, n::max_e5m6);
  CHECK(oracle::to_bits(e5m6.sf) == 0x30D35DD3u);
  CHECK(oracle::to_bits(e5m6.sf_inv) == 0x4E1B0780u);
  CHECK(n::scale_power_of_two(0.0f, n::clamp_e5m6, n::max_e5m6).exponent == 98);

  CHECK(n::clamp_e4m3_with_e4m3_sf == 0.875f);
  CHECK(n::scale_e4m3(0.0f, n::clamp_e2m1_with_e4m3_sf, n::max_e2m1).sf == 0x1p-9f);
}

TEST_CASE("scales around max_q * 2^n, in all three forms", "[numeric]") {
  oracle::mismatches wrong;
  for (const target& t : targets) {
    for (int k = -149; k <= 127; ++k) {
      const double exact = std::ldexp(static_cast<double>(t.max_q), k);
      if (exact > static_cast<double>(n::fp32_max)) continue;
      const auto amax = static_cast<float>(exact);
      for (float a : {std::nextafterf(amax, 0.0f), amax, std::nextafterf(amax, HUGE_VALF)}) {
        const float clamped = std::fmax(a, t.clamp);
        const float s = clamped / t.max_q;
        const n::scale plain = n::scale_plain(a, t.clamp, t.max_q);
        wrong.compare_values(a, plain.sf, s);
        wrong.compare_values(a, plain.sf_inv, t.max_q / clamped);

        const n::scale rounded = n::scale_power_of_two(a, t.clamp, t.max_q);
        const int e = exponent_by_search(s);
        wrong.compare(a, rounded.exponent, static_cast<std::uint32_t>(e));
        wrong.compare_values(a, rounded.sf, static_cast<float>(std::ldexp(1.0, e - 127)));
        wrong.compare_values(a, rounded.sf_inv, static_cast<float>(std::ldexp(1.0, 127 - e)));
        // The block fits: no code saturates by more than the rounding of s.
        if (static_cast<double>(clamped) >
            static_cast<double>(t.max_q) * (1 + 0x1p-23) * static_cast<double>(rounded.sf))
          wrong.compare(a, 0, 1);
      }
      if (amax > t.clamp) {
        const auto e = static_cast<std::uint32_t>(k + 127);
        wrong.compare(amax, n::scale_power_of_two(amax, t.clamp, t.max_q).exponent, e);
        wrong.compare(
            amax, n::scale_power_of_two(std::nextafterf(amax, HUGE_VALF), t.clamp, t.max_q).exponent, e + 1);
      }
    }
  }
  wrong.require_none();
}

TEST_CASE("e4m3 scales are e4m3 values and their inverse is that of the rounded scale", "[numeric]") {
  const oracle::format f = oracle::e4m3();
  const target e4m3_targets[] = {{n::max_e4m3, n::clamp_e4m3_with_e4m3_sf},
                                 {n::max_e2m1, n::clamp_e2m1_with_e4m3_sf}};
  oracle::mismatches wrong;
  for (const target& t : e4m3_targets) {
    for (std::uint32_t b = 0; b < 0x7F80; ++b) {
      const float a = oracle::bf16_value(b);
      const std::uint32_t code = oracle::nearest(f, std::fmax(a, t.clamp) / t.max_q);
      const auto sf = static_cast<float>(f.magnitudes[code]);
      const n::scale got = n::scale_e4m3(a, t.clamp, t.max_q);
      wrong.compare_values(a, got.sf, sf);
      wrong.compare_values(a, got.sf_inv, 1.0f / sf);
      wrong.compare(a, n::to_e4m3(got.sf).bits, code);
    }
  }
  wrong.require_none();
  CHECK(n::scale_e4m3(n::fp32_max, 0.0f, n::max_e4m3).sf == 448.0f);
}

TEST_CASE("amax ignores NaN and caps Inf, and no scale is zero, infinite or NaN", "[numeric]") {
  const float nan = std::nanf(""), inf = HUGE_VALF;
  CHECK(n::amax_step(1.0f, nan) == 1.0f);
  CHECK(n::amax_step(0.0f, -nan) == 0.0f);
  CHECK(n::amax_step(1.0f, -inf) == n::fp32_max);
  CHECK(n::amax_step(3.0f, -2.0f) == 3.0f);
  CHECK(n::amax_step(0.0f, -0x1p-149f) == 0x1p-149f);
  CHECK_FALSE(std::signbit(n::amax_step(0.0f, -0.0f)));

  const auto usable = [](float x) { return std::isfinite(x) && x > 0; };
  for (const target& t : targets) {
    for (float amax : {0.0f, 0x1p-149f, 1e-40f, 1e-35f, 1.0f, n::fp32_max, inf, nan, -nan, -1.0f}) {
      for (float clamp : {t.clamp, 0.0f, 1e-45f, 1e-38f, nan}) {
        CAPTURE(amax, clamp, t.max_q);
        for (const n::scale s :
             {n::scale_plain(amax, clamp, t.max_q), n::scale_power_of_two(amax, clamp, t.max_q),
              n::scale_e4m3(amax, clamp, t.max_q)}) {
          CHECK(usable(s.sf));
          CHECK(usable(s.sf_inv));
          CHECK(s.exponent == n::exponent_field(s.sf));
        }
      }
    }
    CHECK(n::scale_plain(nan, t.clamp, t.max_q).sf == n::scale_plain(0.0f, t.clamp, t.max_q).sf);
    CHECK(n::scale_plain(inf, t.clamp, t.max_q).sf == n::scale_plain(n::fp32_max, t.clamp, t.max_q).sf);
  }
  // The largest magnitude still has a normal inverse.
  CHECK(n::scale_power_of_two(n::fp32_max, n::clamp_e2m1, n::max_e2m1).exponent == 253);
}
