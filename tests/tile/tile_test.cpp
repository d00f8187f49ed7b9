// The arithmetic of backends/cuda/tile and the choice of configurations: host code, so tested without a
// device.
#include <set>
#include <vector>

#include "backends/cuda/sm90/gemm_config.hpp"
#include "backends/cuda/tile/scheduler.hpp"
#include "backends/cuda/tile/shared_tile.hpp"
#include "support/catch.hpp"

using namespace portile::cuda;

TEST_CASE("a swizzled tile holds every byte once and has no bank conflicts") {
  using tile = shared_tile<64>;
  std::set<std::uint32_t> seen;
  for (int row = 0; row < tile::rows; ++row)
    for (int byte = 0; byte < tile::row_bytes; ++byte) {
      const std::uint32_t at = tile::offset(row, byte);
      CHECK(at / tile::row_bytes == static_cast<std::uint32_t>(row));
      CHECK(at % 16 == static_cast<std::uint32_t>(byte) % 16);
      seen.insert(at);
    }
  CHECK(seen.size() == static_cast<std::size_t>(tile::bytes));
  CHECK(*seen.rbegin() == tile::bytes - 1);

  // Eight rows of one 16-byte unit, as ldmatrix, stmatrix and the tensor cores read them: all 32 banks.
  for (int row0 = 0; row0 < tile::rows; row0 += 8)
    for (int unit = 0; unit < 8; ++unit) {
      std::set<std::uint32_t> banks;
      for (int r = 0; r < 8; ++r) banks.insert(tile::offset(row0 + r, unit * 16) / 16 % 8);
      CHECK(banks.size() == 8);
    }
}

TEST_CASE("a descriptor holds the address, the distance of eight rows and the swizzle") {
  const std::uint64_t d = shared_tile<128>::descriptor(0x2C00);
  CHECK((d & 0x3FFF) == 0x2C00 >> 4);
  CHECK((d >> 32 & 0x3FFF) == 1024 >> 4);
  CHECK(d >> 62 == 1);
  CHECK(((d + shared_tile<128>::along_k(96)) & 0x3FFF) == (0x2C00 + 96) >> 4);
}

TEST_CASE("a banded order visits every tile once, a band at a time") {
  for (const int rows : {1, 2, 7, 16, 33})
    for (const int cols : {1, 3, 16})
      for (const int group : {1, 4, 8, 64}) {
        const banded_order order{rows, cols, group};
        std::set<std::pair<int, int>> seen;
        int band = 0;
        for (std::int64_t i = 0; i < order.count(); ++i) {
          const tile_place t = order(i);
          REQUIRE(t.row >= 0);
          REQUIRE(t.row < rows);
          REQUIRE(t.col >= 0);
          REQUIRE(t.col < cols);
          CHECK(t.row / group >= band);
          band = t.row / group;
          seen.insert({t.row, t.col});
        }
        CHECK(seen.size() == static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
      }
}

TEST_CASE("every configuration that may be picked is legal") {
  using namespace portile::cuda::sm90;
  const std::int64_t extents[] = {1, 64, 65, 128, 200, 512, 2112, 7168, 2147483632};
  for (const gemm_type type : {gemm_type::bf16, gemm_type::tf32, gemm_type::e4m3})
    for (const int out_bytes : {2, 4})
      for (const int num_sms : {1, 2, 78, 132})
        for (const std::int64_t m : extents)
          for (const std::int64_t n : extents)
            for (const std::int64_t k :
                 {std::int64_t{1}, std::int64_t{64}, std::int64_t{513}, std::int64_t{7168}}) {
              gemm_shape s;
              s.m = m, s.n = n, s.k = k, s.type = type, s.out_bytes = out_bytes, s.num_sms = num_sms;
              const gemm_config c = pick(s);
              INFO(m << " x " << n << " x " << k << " on " << num_sms << ": " << c.text());
              bool compiled = false;
              for (const gemm_config& t : tiles_of(type))
                compiled |= t.tile_m == c.tile_m && t.tile_n == c.tile_n;
              REQUIRE(compiled);
              REQUIRE(c.stages >= 2);
              REQUIRE(c.shared_bytes() <= gemm_config::shared_limit);
              REQUIRE(c.blocks >= 1);
              REQUIRE(c.blocks <= 4);
              REQUIRE((c.blocks == 1) == (c.use == cluster_use::none));
              // A box of a copy: whole groups of eight rows, at most 256.
              const int a_box = c.tile_m / (c.use == cluster_use::same_rows ? c.blocks : 1),
                        b_box = c.tile_n / (c.use == cluster_use::same_columns ? c.blocks : 1);
              REQUIRE(a_box % 8 == 0);
              REQUIRE(b_box % 8 == 0);
              REQUIRE(b_box <= 256);
              if (c.use == cluster_use::split_k) {
                REQUIRE((k + s.step() - 1) / s.step() >= c.blocks);
                REQUIRE(c.tile_m * c.tile_n * 4 <= c.stages * c.stage_bytes());
              } else {
                REQUIRE(c.staging >= 1);
              }
            }
}
