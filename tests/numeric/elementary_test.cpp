#include <portile/core/numeric/elementary.hpp>

#include <algorithm>

#include "oracle.hpp"
#include "support/catch.hpp"

namespace n = portile::numeric;

namespace {

// Distance of `got` from `exact` in units of the last place of an fp32 of that size.
double ulps(float got, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  const double unit = std::ldexp(1.0, std::min(std::max(exponent - 24, -149), 104));
  const double value = std::isinf(got) ? std::copysign(0x1p128, got) : static_cast<double>(got);
  return std::fabs(value - exact) / unit;
}

// Largest error over every `step`-th bit pattern, where the exact result is neither NaN nor beyond double.
template <class F, class Exact>
double largest_error(F f, Exact exact, std::uint32_t step) {
  double worst = 0;
  for (std::uint64_t u = 0; u <= 0xFFFFFFFFu; u += step) {
    const float x = oracle::from_bits(static_cast<std::uint32_t>(u));
    const double e = exact(static_cast<double>(x));
    const float got = f(x);
    if (std::isnan(e) != std::isnan(got)) FAIL("input " << x << " result " << got);
    if (std::isnan(e)) continue;
    if (std::isinf(e) ? static_cast<double>(got) != e : std::signbit(got) != std::signbit(e)) {
      FAIL("input " << x << " result " << got);
    }
    if (std::isfinite(e) && std::fabs(e) < 0x1p128) worst = std::max(worst, ulps(got, e));
  }
  return worst;
}

// A hash of the result bits over every `step`-th bit pattern (FNV-1a, by words).
template <class F>
std::uint64_t fingerprint(F f, std::uint32_t step) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (std::uint64_t u = 0; u <= 0xFFFFFFFFu; u += step) {
    hash = (hash ^ oracle::to_bits(f(oracle::from_bits(static_cast<std::uint32_t>(u))))) * 0x100000001B3u;
  }
  return hash;
}

float exp_of(float x) { return n::exp_f32(x); }
float log1p_of(float x) { return n::log1p_f32(x); }
float sigmoid_of(float x) { return n::sigmoid_f32(x); }
float sqrt_softplus_of(float x) { return n::sqrt_softplus_f32(x); }

}  // namespace

TEST_CASE("exp and log1p stay within their measured error", "[numeric]") {
  CHECK(largest_error(
            exp_of, [](double x) { return std::exp(x); }, 1009) < 0.765);
  CHECK(largest_error(
            log1p_of, [](double x) { return std::log1p(x); }, 1009) < 0.764);
}

TEST_CASE("exp at its bounds", "[numeric]") {
  CHECK(n::exp_f32(0.0f) == 1.0f);
  CHECK(n::exp_f32(-0.0f) == 1.0f);
  CHECK(n::exp_f32(0x1p-149f) == 1.0f);
  CHECK(n::exp_f32(HUGE_VALF) == HUGE_VALF);
  CHECK(oracle::to_bits(n::exp_f32(-HUGE_VALF)) == 0);
  CHECK(oracle::to_bits(n::exp_f32(-std::nanf(""))) == 0x7FC00000u);
  // The last finite result and the first Inf.
  CHECK(std::isfinite(n::exp_f32(0x1.62e42ep+6f)));
  CHECK(n::exp_f32(0x1.62e430p+6f) == HUGE_VALF);
  CHECK(n::exp_f32(n::fp32_max) == HUGE_VALF);
  // Subnormal results, the smallest one, and the first zero.
  CHECK(n::exp_f32(-88.0f) == static_cast<float>(std::exp(-88.0)));
  CHECK(n::exp_f32(-103.0f) == 0x1p-149f);
  CHECK(n::exp_f32(-103.9f) == 0x1p-149f);
  CHECK(n::exp_f32(-104.0f) == 0.0f);
}

TEST_CASE("log1p at its bounds", "[numeric]") {
  CHECK(oracle::to_bits(n::log1p_f32(0.0f)) == 0);
  CHECK(oracle::to_bits(n::log1p_f32(-0.0f)) == 0x80000000u);
  CHECK(n::log1p_f32(0x1p-149f) == 0x1p-149f);
  CHECK(n::log1p_f32(-0x1p-149f) == -0x1p-149f);
  CHECK(n::log1p_f32(-1.0f) == -HUGE_VALF);
  CHECK(n::log1p_f32(HUGE_VALF) == HUGE_VALF);
  CHECK(oracle::to_bits(n::log1p_f32(-0x1.000002p+0f)) == 0x7FC00000u);
  CHECK(oracle::to_bits(n::log1p_f32(-HUGE_VALF)) == 0x7FC00000u);
  CHECK(oracle::to_bits(n::log1p_f32(-std::nanf(""))) == 0x7FC00000u);
  CHECK(n::log1p_f32(n::fp32_max) == static_cast<float>(std::log1p(static_cast<double>(n::fp32_max))));
  CHECK(n::log1p_f32(-0x1.fffffep-1f) == static_cast<float>(std::log1p(-0x1.fffffep-1)));
}

TEST_CASE("sigmoid and sqrt of softplus are composed as documented", "[numeric]") {
  oracle::mismatches wrong;
  for (std::uint32_t b = 0; b <= 0xFFFF; ++b) {
    const float x = oracle::bf16_value(b);
    wrong.compare_values(x, n::sigmoid_f32(x), 1.0f / (1.0f + n::exp_f32(-x)));
    wrong.compare_values(x, n::sqrt_softplus_f32(x), std::sqrt(x > 20.0f ? x : n::log1p_f32(n::exp_f32(x))));
  }
  wrong.require_none();
  CHECK(n::sigmoid_f32(0.0f) == 0.5f);
  CHECK(n::sigmoid_f32(-200.0f) == 0.0f);
  CHECK(n::sigmoid_f32(200.0f) == 1.0f);
  CHECK(n::sqrt_softplus_f32(-HUGE_VALF) == 0.0f);
  CHECK(n::sqrt_softplus_f32(HUGE_VALF) == HUGE_VALF);
  CHECK(n::sqrt_softplus_f32(25.0f) == 5.0f);
  CHECK(oracle::to_bits(n::sigmoid_f32(-std::nanf(""))) == 0x7FC00000u);
  CHECK(oracle::to_bits(n::sqrt_softplus_f32(-std::nanf(""))) == 0x7FC00000u);
}

// A compiler that reassociates or flushes subnormals changes these, and so would a device that rounds
// differently.
TEST_CASE("exp and log1p give the same bits everywhere", "[numeric]") {
  CHECK(fingerprint(exp_of, 4099) == 0xF26EC5DFAB63B821u);
  CHECK(fingerprint(log1p_of, 4099) == 0x9A7ABFD4E5444BABu);
  CHECK(fingerprint(sigmoid_of, 4099) == 0x307A69581F62218Au);
  CHECK(fingerprint(sqrt_softplus_of, 4099) == 0x7059DF9C0BEF2AD3u);
}
