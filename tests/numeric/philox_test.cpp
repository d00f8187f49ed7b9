#include <portile/core/numeric/philox.hpp>

#include "support/catch.hpp"

namespace n = portile::numeric;

namespace {

constexpr bool equal(n::philox_words a, n::philox_words b) {
  return a.w[0] == b.w[0] && a.w[1] == b.w[1] && a.w[2] == b.w[2] && a.w[3] == b.w[3];
}

constexpr std::uint32_t ones = 0xFFFFFFFFu;

}  // namespace

// The known answers that the authors of the generator publish.
static_assert(equal(n::philox4x32_10(n::philox_words{{0, 0, 0, 0}}, n::philox_key{{0, 0}}),
                    {{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}}));
static_assert(equal(n::philox4x32_10(n::philox_words{{ones, ones, ones, ones}}, n::philox_key{{ones, ones}}),
                    {{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}}));
static_assert(equal(n::philox4x32_10(n::philox_words{{0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}},
                                     n::philox_key{{0xA4093822u, 0x299F31D0u}}),
                    {{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}}));

TEST_CASE("the 64-bit form of Philox places seed, subsequence and offset", "[numeric]") {
  const n::philox_words got =
      n::philox4x32_10(std::uint64_t{0x299F31D0A4093822u}, std::uint64_t{0x0370734413198A2Eu},
                       std::uint64_t{0x85A308D3243F6A88u});
  CHECK(equal(got, {{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}}));
}

TEST_CASE("uniform values lie in (0, 1]", "[numeric]") {
  CHECK(n::uniform_f32(0u) == 0x1p-33f);
  CHECK(n::uniform_f32(ones) == 1.0f);
  CHECK(n::uniform_f32(0x80000000u) == 0.5f);
  CHECK(n::uniform_f32(1u) == 0x1.8p-32f);
}

TEST_CASE("the seed mixer", "[numeric]") {
  // The steps in 64 bits, reduced after each.
  for (std::uint64_t seed : {0u, 1u, 42u, 0x80000000u, ones}) {
    std::uint64_t s = (seed + 0x9E3779B9u) % 0x100000000u;
    s = (s ^ (s >> 16)) * 0x21F0AAADu % 0x100000000u;
    s = (s ^ (s >> 15)) * 0x735A2D97u % 0x100000000u;
    s ^= s >> 15;
    CHECK(n::seed_mix(static_cast<std::uint32_t>(seed)) == s);
  }
}
