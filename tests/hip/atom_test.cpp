// The lane maps of the matrix instructions against AMD's published ones, written the other way round there:
// the register and the lane of each element. And codes, and banks of LDS.
#include "backends/hip/mfma/atom.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <portile/core/numeric/e2m1.hpp>

#include "backends/hip/mfma/lds.hpp"
#include "backends/hip/mfma/order.hpp"
#include "support/catch.hpp"

using namespace portile;
using namespace portile::hip;

namespace {

struct home {
  int lane, index;
  bool operator==(const home&) const = default;
};

// "32x32": A[i][k] of lane 32 (k / v) + i, value k % v. D[i][j] of lane 32 ((i / 4) % 2) + j, register 4 (i /
// 8) + i %
// 4. "16x16": A[i][k] of lane 16 (k / v) + i; D[i][j] of lane 16 (i / 4) + j, register i % 4.
home published_factor(int rows, int values, int row, int channel) {
  return {rows * (channel / values) + row, channel % values};
}
home published_result(int rows, int row, int col) {
  if (rows == 32) return {32 * (row / 4 % 2) + col, 4 * (row / 8) + row % 4};
  return {16 * (row / 4) + col, row % 4};
}

template <class Atom>
void expect_published_maps() {
  INFO(Atom::rows << "x" << Atom::cols << "x" << Atom::depth);
  CHECK(Atom::words * 4 == Atom::values * static_cast<int>(sizeof(typename Atom::factor)));
  std::set<std::pair<int, int>> a, b, d;
  for (int lane = 0; lane < 64; ++lane) {
    for (int i = 0; i < Atom::values; ++i) {
      const place at = Atom::a(lane, i);
      CHECK(published_factor(Atom::rows, Atom::values, at.row, at.col) == home{lane, i});
      CHECK(Atom::b(lane, i) == place{at.col, at.row});
      a.insert({at.row, at.col});
      b.insert({Atom::b(lane, i).row, Atom::b(lane, i).col});
    }
    for (int i = 0; i < Atom::results; ++i) {
      const place at = Atom::result(lane, i);
      CHECK(published_result(Atom::rows, at.row, at.col) == home{lane, i});
      CHECK((at.row >= 0 && at.row < Atom::rows && at.col >= 0 && at.col < Atom::cols));
      d.insert({at.row, at.col});
    }
  }
  // Every element once.
  CHECK(a.size() == std::size_t{Atom::rows * Atom::depth});
  CHECK(b.size() == std::size_t{Atom::depth * Atom::cols});
  CHECK(d.size() == std::size_t{Atom::rows * Atom::cols});
}

/// The most lanes of eight that use one bank.
int conflicts(const std::vector<int>& addresses) {
  std::vector<int> uses(32);
  for (int at : addresses)
    for (int w = 0; w < 4; ++w) ++uses[static_cast<std::size_t>(at / 4 + w) % 32];
  return *std::max_element(uses.begin(), uses.end());
}

}  // namespace

TEST_CASE("matrix atoms have the published lane maps") {
  expect_published_maps<bf16_32x32x8>();
  expect_published_maps<bf16_16x16x16>();
  expect_published_maps<bf16_32x32x16>();
  expect_published_maps<bf16_16x16x32>();
  expect_published_maps<f32_32x32x2>();
  expect_published_maps<f32_16x16x4>();
  expect_published_maps<xf32_32x32x4>();
  expect_published_maps<xf32_16x16x8>();
  expect_published_maps<fnuz_32x32x16>();
  expect_published_maps<fnuz_16x16x32>();
  expect_published_maps<e4m3_32x32x16>();
  expect_published_maps<e4m3_16x16x32>();
}

TEST_CASE("fnuz codes have half the value of the e4m3 codes they stand for") {
  for (unsigned code = 0; code < 256; ++code)
    for (unsigned at = 0; at < 4; ++at) {
      // Neighbours that must stay what they are: the largest code, a small one, NaN.
      const std::uint32_t others = 0xFF017EFFu & ~(0xFFu << (8 * at));
      const std::uint32_t converted = to_fnuz(others | code << (8 * at));
      const float expected = numeric::to_float(numeric::e4m3{static_cast<std::uint8_t>(code)}) / 2;
      const float got = hip::to_float(e4m3_fnuz{static_cast<std::uint8_t>(converted >> (8 * at))});
      INFO("code " << code << " in byte " << at);
      if (std::isnan(expected))
        CHECK(std::isnan(got));
      else
        CHECK(got == expected);
      CHECK((converted & ~(0xFFu << (8 * at))) == (0x80017E80u & ~(0xFFu << (8 * at))));
    }
}

TEST_CASE("e2m1 codes become e4m3 codes of the same value") {
  for (unsigned low = 0; low < 16; ++low)
    for (unsigned high = 0; high < 16; ++high) {
      const std::uint32_t codes = e2m1_as_e4m3(low | high << 4 | high << 8 | low << 12);
      const auto value = [&](int i) {
        return numeric::to_float(numeric::e4m3{static_cast<std::uint8_t>(codes >> (8 * i))});
      };
      const unsigned expected[4] = {low, high, high, low};
      for (int i = 0; i < 4; ++i)
        CHECK(numeric::float_bits(value(i)) ==
              numeric::float_bits(numeric::e2m1_to_float(static_cast<std::uint8_t>(expected[i]))));
    }
}

TEST_CASE("LDS: chunks of a tile do not overlap, and lanes that go together use each bank once") {
  std::set<int> seen;
  for (int row = 0; row < 128; ++row)
    for (int chunk = 0; chunk < row_chunks; ++chunk) {
      CHECK(chunk_at(row, chunk) % chunk_bytes == 0);
      CHECK(chunk_at(row, chunk) < 128 * row_bytes);
      seen.insert(chunk_at(row, chunk));
    }
  CHECK(seen.size() == std::size_t{128 * row_chunks});
  for (int row = 0; row < 128; row += 8)
    for (int chunk = 0; chunk < row_chunks; ++chunk) {
      std::vector<int> reads, writes;
      for (int i = 0; i < 8; ++i) reads.push_back(chunk_at(row + i, chunk));
      for (int i = 0; i < 8; ++i) writes.push_back(chunk_at(row + 2 * chunk + i / 4, i % 4));
      CHECK(conflicts(reads) == 1);
      CHECK(conflicts(writes) == 1);
    }
}

TEST_CASE("every tile has one block, and a chiplet's tiles are neighbours") {
  for (int dies : {1, 8})
    for (std::int64_t tiles : {1, 2, 7, 8, 9, 15, 16, 17, 63, 1000}) {
      std::set<std::int64_t> taken;
      for (std::int64_t work = 0; work < tiles; ++work) {
        const std::int64_t tile = tile_of(work, tiles, dies);
        CHECK((tile >= 0 && tile < tiles));
        taken.insert(tile);
        if (work >= dies) CHECK(tile == tile_of(work - dies, tiles, dies) + 1);
      }
      CHECK(taken.size() == static_cast<std::size_t>(tiles));
    }
}
