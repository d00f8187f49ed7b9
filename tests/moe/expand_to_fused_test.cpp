#include <cstring>

#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::expand_to_fused;
using moe::expand_to_fused_with_sf;

namespace {

constexpr std::int64_t tokens = 5, rows = 12;
// Slots of five tokens in twelve rows; rows 3, 7, 8 and 11 are padding, row 10 has an owner but no slot.
const std::vector<int> slots{0, 4, 9, -1, 1, 5, -1, -1, 6, 2};
const std::vector<int> owners{0, 0, 0, -1, 1, 1, 1, -1, -1, 2, 2, -1};

expand_to_fused plain(memory& m, dtype type = dtype::bf16, std::int64_t width = 7) {
  expand_to_fused p;
  p.x = m.make(type, {tokens, width});
  fill_normal(p.x, 1);
  p.token_topk_to_pos = m.of<std::int32_t>({tokens, 2}, slots);
  p.pos_to_expert = m.of<std::int32_t>({rows}, owners);
  p.out = m.make(type, {rows, width});
  return p;
}

expand_to_fused_with_sf scaled(memory& m, dtype sf, bool col_major, std::int64_t hidden = 192) {
  expand_to_fused_with_sf p;
  const expand_to_fused moved = plain(m, dtype::e4m3, hidden);
  p.x = moved.x;
  p.out = moved.out;
  p.token_topk_to_pos = moved.token_topk_to_pos;
  p.pos_to_expert = moved.pos_to_expert;
  p.num_per_channels = 32;
  p.use_tma_aligned_col_major_sf = col_major;
  const std::int64_t width = stored_extent(sf, (hidden + 31) / 32);
  p.x_sf = m.make(sf, {tokens, width});
  for (std::int64_t i = 0; i < p.x_sf.numel(); ++i)
    static_cast<std::uint32_t*>(p.x_sf.data)[i] = 0x3F800000u + static_cast<std::uint32_t>(i);
  p.out_sf = col_major ? m.make(sf, {rows, width}, {1, 12}) : m.make(sf, {rows, width});
  return p;
}

/// The token whose slot names the row, -1 for none.
int source_of(int row) {
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (slots[i] == row) return static_cast<int>(i / 2);
  return -1;
}

/// Every element of `to` is that of its token, or zero.
bool moved(const tensor& from, const tensor& to) {
  const std::int64_t size = size_of(from.dtype);
  const std::vector<char> zero(static_cast<std::size_t>(size));
  for (int r = 0; r < to.extent(0); ++r)
    for (std::int64_t j = 0; j < to.extent(1); ++j) {
      const char* got = static_cast<const char*>(to.data) + (r * to.stride(0) + j * to.stride(1)) * size;
      const int t = source_of(r);
      const char* want =
          t < 0 ? zero.data()
                : static_cast<const char*>(from.data) + (t * from.stride(0) + j * from.stride(1)) * size;
      if (std::memcmp(got, want, static_cast<std::size_t>(size)) != 0) return false;
    }
  return true;
}

}  // namespace

TEST_CASE("moe.expand_to_fused refuses bad problems") {
  expect_refusals<expand_to_fused>(
      [](memory& m) { return plain(m); },
      {
          {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
          {"tokens", [](auto& p) { p.token_topk_to_pos.extents[0] = 4; },
           "token_topk_to_pos.extents[0] = 4: must be num_tokens = 5"},
          {"rank", [](auto& p) { p.x.rank = 1; }, "x.rank = 1"},
          {"x contiguous", [](auto& p) { p.x.strides[0] = 9; }, "must be contiguous", 1},
          {"positions contiguous", [](auto& p) { p.token_topk_to_pos.strides[0] = 3; }, "must be contiguous",
           1},
          {"positions dtype", [](auto& p) { p.token_topk_to_pos.dtype = dtype::i64; },
           "token_topk_to_pos.dtype = i64: must be i32"},
          {"out dtype", [](auto& p) { p.out.dtype = dtype::f16; },
           "out.dtype = f16: must be bf16, the dtype of x"},
          {"out rows", [](auto& p) { p.out.extents[0] = 11; }, "out.extents[0] = 11: must be num_rows = 12"},
          {"packed scales", [](auto& p) { p.x.dtype = dtype::ue8m0x4; }, "x.dtype = ue8m0x4"},
      });
}

TEST_CASE("moe.expand_to_fused_with_sf refuses bad problems") {
  expect_refusals<expand_to_fused_with_sf>({
      {[](memory& m) { return scaled(m, dtype::f32, false); },
       {
           {"x_sf absent", [](auto& p) { p.x_sf = {}; }, "x_sf = absent: is required"},
           {"tokens", [](auto& p) { p.token_topk_to_pos.extents[0] = 4; },
            "token_topk_to_pos.extents[0] = 4: must be num_tokens = 5"},
           {"x contiguous", [](auto& p) { p.x.strides[0] = 200; }, "must be contiguous", 3},
           {"x_sf contiguous",
            [](auto& p) {
              p.x_sf.strides = {1, 5};
            },
            "must be contiguous", 3},
           {"positions contiguous", [](auto& p) { p.token_topk_to_pos.strides[0] = 3; }, "must be contiguous",
            3},
           {"x_sf width", [](auto& p) { p.x_sf.extents[1] = p.x_sf.strides[0] = 5; },
            "x_sf.extents[1] = 5: must be ceil(hidden_size, num_per_channels) = 6"},
           {"num_per_channels",
            [](auto& p) {
              p.num_per_channels = 64;
              p.x_sf.extents[1] = p.x_sf.strides[0] = p.out_sf.extents[1] = 3;
            },
            "num_per_channels = 64: must be one of 32, 128", 1},
           {"out dtype", [](auto& p) { p.out.dtype = dtype::e5m2; },
            "out.dtype = e5m2: must be e4m3, the dtype of x"},
           {"out_sf dtype",
            [](auto& p) {
              p.out_sf.dtype = dtype::ue8m0x4;
              p.out_sf.extents[1] = 2;
            },
            "out_sf.dtype = ue8m0x4: must be f32, the dtype of x_sf"},
           {"out_sf layout", [](auto& p) { p.use_tma_aligned_col_major_sf = true; }, "out_sf.strides"},
       }},
      {[](memory& m) { return scaled(m, dtype::ue8m0x4, true); },
       {
           {"packed row-major", [](auto& p) { p.use_tma_aligned_col_major_sf = false; },
            "use_tma_aligned_col_major_sf = false: must be set with packed scales", 2},
           {"packed leading dimension",
            [](auto& p) {
              p.out_sf.strides = {1, 13};
            },
            "must be a multiple of 4"},
       }},
  });
}

TEST_CASE("moe.expand_to_fused moves rows of every element type and zeroes the rest") {
  memory m;
  queue q{cpu_selector};
  for (dtype type : {dtype::bf16, dtype::f32, dtype::e4m3, dtype::e2m1x2, dtype::f64, dtype::f16, dtype::i64,
                     dtype::boolean, dtype::u8}) {
    const expand_to_fused p = plain(m, type);
    run(q, p);
    CHECK(moved(p.x, p.out));
  }
  expand_to_fused wide = plain(m);
  wide.out = m.make(dtype::bf16, {rows, 7}, {11, 1});
  run(q, wide);
  CHECK(moved(wide.x, wide.out));
  CHECK(at<std::uint16_t>(wide.out, 0, 7) == 0xA5A5);
  CHECK(m.guards_intact());
}

TEST_CASE("moe.expand_to_fused_with_sf moves scales of every layout") {
  memory m;
  queue q{cpu_selector};
  for (const auto& [type, col_major] :
       {std::pair{dtype::f32, false}, {dtype::f32, true}, {dtype::ue8m0x4, true}})
    for (std::int64_t hidden : {192, 40}) {
      const expand_to_fused_with_sf p = scaled(m, type, col_major, hidden);
      run(q, p);
      CHECK(moved(p.x, p.out));
      CHECK(moved(p.x_sf, p.out_sf));
      const auto outputs = infer(p);
      CHECK(outputs[1].extents == std::vector<std::int64_t>{rows, p.out_sf.extent(1)});
      CHECK(outputs[1].strides == std::vector<std::int64_t>{p.out_sf.stride(0), p.out_sf.stride(1)});
    }
  CHECK(m.guards_intact());
}

TEST_CASE("moe.expand_to_fused: a row without an expert is zero whatever names it") {
  memory m;
  expand_to_fused p = plain(m);
  at<int>(p.pos_to_expert, 4) = -1;
  queue q{cpu_selector};
  run(q, p);
  for (int j = 0; j < 7; ++j) CHECK(at<std::uint16_t>(p.out, 4, j) == 0);
}

TEST_CASE("moe.expand_to_fused traps on positions past the rows") {
  memory m;
  expand_to_fused p = plain(m);
  at<int>(p.token_topk_to_pos, 1, 0) = rows;
  at<int>(p.token_topk_to_pos, 3, 1) = std::numeric_limits<int>::max();
  expect_trap(p, "token_topk_to_pos must be below the number of rows", 2);
  expand_to_fused_with_sf s = scaled(m, dtype::f32, true);
  at<int>(s.token_topk_to_pos, 4, 1) = rows;
  expect_trap(s, "token_topk_to_pos must be below the number of rows", 9);
  queue unchecked{cpu_selector};
  run(unchecked, p);
  for (int j = 0; j < 7; ++j) CHECK(at<std::uint16_t>(p.out, 9, j) == 0);
  CHECK(m.guards_intact());
}

TEST_CASE("moe.expand_to_fused: no tokens give zero rows, no rows give nothing") {
  memory m;
  queue q{cpu_selector};
  expand_to_fused_with_sf p = scaled(m, dtype::f32, false);
  p.x.extents[0] = p.x_sf.extents[0] = p.token_topk_to_pos.extents[0] = 0;
  run(q, p);
  for (int r = 0; r < rows; ++r)
    CHECK((at<std::uint8_t>(p.out, r, 191) == 0 && at<std::uint32_t>(p.out_sf, r, 5) == 0));
  p.out.extents[0] = p.out_sf.extents[0] = p.pos_to_expert.extents[0] = 0;
  CHECK_NOTHROW(run(q, p));
}
