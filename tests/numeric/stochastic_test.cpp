#include <portile/core/numeric/stochastic.hpp>

#include "oracle.hpp"
#include "support/catch.hpp"

namespace n = portile::numeric;

static_assert(n::stochastic_bf16(1.0f, 0xFFFF).bits == 0x3F80);
static_assert(n::stochastic_e4m3(1.0f, 0xFFFF).bits == 0x38);
static_assert(n::stochastic_e2m1(0.25f, 0x8000) == 1 && n::stochastic_e2m1(0.25f, 0x7FFF) == 0);
static_assert(n::bit_reverse16(0x8001) == 0x8001 && n::bit_reverse16(0x0003) == 0xC000);

namespace {

// From the definition, in double: exact, because every quantity has fewer than 53 bits where it decides.
std::uint32_t expected_code(const oracle::format& f, float x, std::uint32_t r) {
  if (std::isnan(x)) return f.nan;
  const double a = std::fabs(static_cast<double>(x));
  const auto last = static_cast<std::uint32_t>(f.magnitudes.size() - 1);
  std::uint32_t code = last;
  if (a < f.magnitudes[last]) {
    code = 0;
    while (f.magnitudes[code + 1] <= a) ++code;
    const double fraction = (a - f.magnitudes[code]) / (f.magnitudes[code + 1] - f.magnitudes[code]);
    if (fraction >= 1 - r / 65536.0) ++code;
  }
  return code | (std::signbit(x) ? 1u << f.sign_shift : 0u);
}

const std::uint16_t random_slices[] = {0, 1, 0x00FF, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xC000, 0xFFFE, 0xFFFF};

template <class Encode>
void check(const oracle::format& f, Encode encode) {
  oracle::mismatches wrong;
  for (std::uint32_t b = 0; b <= 0xFFFF; b += 3) {
    for (std::uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0xFFFFu}) {
      const float x = oracle::from_bits((b << 16) | low);
      if (std::fabs(x) > 1e6f && std::fabs(x) < 1e38f) continue;
      for (std::uint16_t r : random_slices) wrong.compare(x, encode(x, r), expected_code(f, x, r));
    }
  }
  wrong.require_none();
}

}  // namespace

TEST_CASE("stochastic rounding follows its definition", "[numeric]") {
  SECTION("e4m3") {
    check(oracle::e4m3(),
          [](float x, std::uint16_t r) -> std::uint32_t { return n::stochastic_e4m3(x, r).bits; });
  }
  SECTION("e2m1") {
    check(oracle::e2m1(), [](float x, std::uint16_t r) -> std::uint32_t { return n::stochastic_e2m1(x, r); });
  }
  SECTION("bf16") {
    // 65,536 slices decide between two neighbours exactly as the 16 bits that are cut off say.
    oracle::mismatches wrong;
    for (std::uint32_t u : {0x00000001u, 0x007F1234u, 0x3F800000u, 0x3F80FFFFu, 0xC1238000u, 0xFF7EFFFFu}) {
      for (std::uint32_t r = 0; r <= 0xFFFF; ++r) {
        const float x = oracle::from_bits(u);
        const std::uint32_t code = (u >> 16) + ((u & 0xFFFF) + r >= 0x10000 ? 1 : 0);
        wrong.compare(x, n::stochastic_bf16(x, static_cast<std::uint16_t>(r)).bits, code);
      }
    }
    wrong.require_none();
  }
}

TEST_CASE("stochastic rounding is unbiased: the share of upward steps is the fraction", "[numeric]") {
  for (int i = 0; i <= 16; ++i) {
    const float x = 1.0f + static_cast<float>(i) / 128.0f;  // between e4m3 neighbours 1 and 1.125
    int up = 0;
    for (std::uint32_t r = 0; r <= 0xFFFF; ++r)
      up += n::stochastic_e4m3(x, static_cast<std::uint16_t>(r)).bits == 0x39;
    CHECK(up == i * 4096);
  }
}

TEST_CASE("stochastic rounding saturates and handles specials", "[numeric]") {
  for (std::uint16_t r : random_slices) {
    CHECK(n::stochastic_e4m3(500.0f, r).bits == 0x7E);
    CHECK(n::stochastic_e4m3(-HUGE_VALF, r).bits == 0xFE);
    CHECK(n::stochastic_e4m3(-0.0f, r).bits == 0x80);
    CHECK(n::stochastic_e4m3(std::nanf(""), r).bits == 0x7F);
    CHECK(n::stochastic_e4m3(0x1p-149f, r).bits == 0x00);
    CHECK(n::stochastic_e2m1(1e38f, r) == 7);
    CHECK(n::stochastic_e2m1(std::nanf(""), r) == 7);
    CHECK(n::stochastic_bf16(n::fp32_max, r).bits == 0x7F7F);
    CHECK(n::stochastic_bf16(HUGE_VALF, r).bits == 0x7F7F);
    CHECK(n::stochastic_bf16(-HUGE_VALF, r).bits == 0xFF7F);
    CHECK(n::stochastic_bf16(std::nanf(""), r).bits == 0x7FC0);
  }
  // The smallest fractions that any r can carry: 2^-16 of a step, in the e4m3 subnormals.
  CHECK(n::stochastic_e4m3(0x1p-25f, 0xFFFF).bits == 0x01);
  CHECK(n::stochastic_e4m3(0x1p-25f, 0xFFFE).bits == 0x00);
  CHECK(n::stochastic_e4m3(0x1.fffffep-26f, 0xFFFF).bits == 0x00);
}

TEST_CASE("the hash and its slices", "[numeric]") {
  // Step by step in 64 bits, for fp32 data 1, -2, 3.14, 1e-40 at position 5.
  const std::uint32_t data[] = {0x3F800000u, 0xC0000000u, 0x4048F5C3u, 0x000116C2u};
  const std::uint64_t factors[] = {0x5671D42Bu, 0x9995E499u, 0xACE1B8A5u, 0xE153538Du};
  std::uint64_t h = 5;
  for (int t = 0; t < 4; ++t) h = (h + data[t] * factors[t] % 0x100000000u) % 0x100000000u;
  h ^= h >> 23;
  h = h * 0x7FEB352Du % 0x100000000u;
  h ^= h >> 16;
  const auto word = [&](std::uint64_t multiplier) {
    const auto v = static_cast<std::uint32_t>(h * multiplier);
    return v ^ (v >> 11);
  };
  const n::sr_words words = n::sr_hash(data[0], data[1], data[2], data[3], 5);
  CHECK(words.r0 == word(0x846CA68Bu));
  CHECK(words.r1 == word(0xD35A2D97u));
  CHECK(n::sr_hash(0, 0, 0, 0, 0).r0 == 0);
  CHECK(n::sr_hash(1, 0, 0, 0, 0).r0 == n::sr_hash(0, 0, 0, 0, 0x5671D42Bu).r0);
  CHECK(n::sr_hash(0, 1, 0, 0, 0).r0 == n::sr_hash(0, 0, 0, 0, 0x9995E499u).r0);
  CHECK(n::sr_hash(0, 0, 1, 0, 0).r0 == n::sr_hash(0, 0, 0, 0, 0xACE1B8A5u).r0);
  CHECK(n::sr_hash(0, 0, 0, 1, 0).r0 == n::sr_hash(0, 0, 0, 0, 0xE153538Du).r0);

  const n::sr_words r{0x04030201u, 0x87654321u};
  const std::uint16_t bf16[] = {0x0201, 0x0403, 0x4321, 0x8765};
  const std::uint16_t e4m3[] = {0x0201, 0x8040, 0x0403, 0xC020};
  const std::uint16_t e2m1[] = {0x0301, 0x80C0, 0x0402, 0x4020};
  for (int t = 0; t < 4; ++t) {
    CHECK(n::sr_slice_bf16(r, t) == bf16[t]);
    CHECK(n::sr_slice_e4m3(r.r0, t) == e4m3[t]);
    CHECK(n::sr_slice_e2m1(r.r0, t) == e2m1[t]);
  }
}
