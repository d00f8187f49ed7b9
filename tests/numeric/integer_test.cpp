#include <portile/core/numeric/integer.hpp>
#include <portile/core/numeric/rank_key.hpp>

#include <cstdint>
#include <limits>

#include "oracle.hpp"
#include "support/catch.hpp"

namespace n = portile::numeric;

constexpr std::int64_t int64_max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t int64_min = std::numeric_limits<std::int64_t>::min();

static_assert(n::floor_mod(-1, 7) == 6 && n::floor_mod(-7, 7) == 0 && n::floor_mod(7, 7) == 0 &&
              n::floor_mod(8, 7) == 1);
static_assert(n::floor_mod(int64_min, 1) == 0 && n::floor_mod(int64_min, 7) == 6 &&
              n::floor_mod(int64_max, 7) == 0);
static_assert(n::floor_mod(-1, 2147483647) == 2147483646);
static_assert(n::ceil_div(0, 5) == 0 && n::ceil_div(1, 5) == 1 && n::ceil_div(5, 5) == 1 &&
              n::ceil_div(6, 5) == 2);
static_assert(n::ceil_div(int64_max, 2) == int64_max / 2 + 1 && n::ceil_div(int64_max, int64_max) == 1);
static_assert(n::align_up(0, 128) == 0 && n::align_up(1, 128) == 128 && n::align_up(128, 128) == 128);
static_assert(n::align_up(4294967297, 16) == 4294967312);
static_assert(n::rank_key(-0.0f) == n::rank_key(0.0f) && n::rank_key(1.0f) > n::rank_key(0.0f));

TEST_CASE("floor_mod is the remainder of floor division", "[numeric]") {
  for (std::int64_t a = -50; a <= 50; ++a) {
    for (std::int32_t b = 1; b <= 12; ++b) {
      std::int64_t q = a / b;  // toward zero
      if (q * b > a) --q;
      if (n::floor_mod(a, b) != a - q * b) FAIL(a << " mod " << b);
    }
  }
}

TEST_CASE("rank keys order floats as their values, NaN last", "[numeric]") {
  // Ascending: every bf16 value and the fp32 after it, from -Inf to Inf.
  std::uint32_t previous = 0;
  const auto next = [&](float x) {
    const std::uint32_t key = n::rank_key(x);
    if (key <= previous) FAIL("key of " << x << " is not larger than the one before");
    previous = key;
  };
  next(-HUGE_VALF);
  for (std::uint32_t b = 0x7F7F; b > 0; --b) {
    next(oracle::from_bits(0x80000000u | (b << 16) | 1u));
    next(oracle::from_bits(0x80000000u | (b << 16)));
  }
  next(-0x1p-149f);
  next(-0.0f);
  for (std::uint32_t b = 0; b < 0x7F80; ++b) {
    if (b != 0) next(oracle::from_bits(b << 16));
    next(oracle::from_bits((b << 16) | 1u));
  }
  next(HUGE_VALF);

  CHECK(n::rank_key(0.0f) == n::rank_key(-0.0f));
  for (std::uint32_t nan : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
    CHECK(n::rank_key(oracle::from_bits(nan)) == 0);
  }
  CHECK(n::rank_key(-HUGE_VALF) > 0);
}
