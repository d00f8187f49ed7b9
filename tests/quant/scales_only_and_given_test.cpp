#include "quant/support.hpp"

using namespace portile;
using namespace portile::test;
using quant::per_block_cast, quant::per_block_cast_with_precomputed_sf, quant::per_block_cast_with_sf_only;
using quant::per_token_cast, quant::per_token_cast_with_precomputed_sf, quant::per_token_cast_with_sf_only;

namespace {

template <class P>
P token_codes(memory& m) {
  P p;
  p.x = m.make(dtype::bf16, {5, 192});
  p.out_sf = m.make(dtype::f32, {5, 2});
  p.out = m.make(dtype::e4m3, {5, 192});
  fill_normal(p.x, 1);
  for (std::int64_t k = 0; k < 10; ++k) at<float>(p.out_sf, k / 2, k % 2) = 0.01f;
  return p;
}
per_token_cast_with_sf_only token_scales(memory& m) {
  per_token_cast_with_sf_only p;
  p.x = m.make(dtype::bf16, {5, 192});
  p.out_sf = m.make(dtype::f32, {5, 2});
  fill_normal(p.x, 1);
  return p;
}
per_block_cast_with_precomputed_sf block_codes(memory& m) {
  auto p = token_codes<per_block_cast_with_precomputed_sf>(m);
  p.block_rows = p.block_cols = 32;
  p.out_sf = m.make(dtype::f32, {1, 6});
  for (std::int64_t k = 0; k < 6; ++k) at<float>(p.out_sf, 0, k) = 0.25f;
  return p;
}
per_block_cast_with_sf_only block_scales(memory& m) {
  per_block_cast_with_sf_only p;
  p.x = m.make(dtype::bf16, {40, 192});
  p.out_sf = m.make(dtype::f32, {2, 6});
  p.block_rows = p.block_cols = 32;
  fill_normal(p.x, 1);
  return p;
}

template <class P>
std::vector<bad_problem<P>> rules_of_codes() {
  return {
      {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
      {"scales absent", [](auto& p) { p.out_sf = {}; }, "out_sf = absent: is required"},
      {"quantised x", [](auto& p) { p.x.dtype = dtype::e4m3; }, "x.dtype = e4m3: must be bf16 or f32"},
      {"packed scales", [](auto& p) { p.out_sf.dtype = dtype::ue8m0x4; },
       "out_sf.dtype = ue8m0x4: must be f32 or e4m3", 3},
      {"column-major scales",
       [](auto& p) {
         p.out_sf.strides = {1, 8};
       },
       "out_sf.strides[1] = 8: the last stride must be 1", 3},
      {"stride of x",
       [](auto& p) {
         p.x.strides = {1, 5};
       },
       "the last stride must be 1"},
      {"misaligned", [](auto& p) { p.out_sf.data = static_cast<char*>(p.out_sf.data) + 2; }, "misaligned"},
      {"out shape", [](auto& p) { p.out.extents[0] = 4; }, "out.extents[0] = 4: must be num_tokens = 5"},
      {"scale shape", [](auto& p) { p.out_sf.extents[1] = 3; }, "out_sf.extents[1] = 3"},
      {"fmt against out", [](auto& p) { p.fmt = "e2m1"; }, "must be empty or 'e4m3'"},
      {"out overlaps itself",
       [](auto& p) {
         p.out.strides = {0, 1};
       },
       "must not overlap itself"},
  };
}
template <class P>
std::vector<bad_problem<P>> rules_of_scales() {
  return {
      {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
      {"quantised x", [](auto& p) { p.x.dtype = dtype::e2m1x2; }, "x.dtype = e2m1x2: must be bf16 or f32"},
      {"scale shape", [](auto& p) { p.out_sf.extents[1] = 1; }, "out_sf.extents[1] = 1"},
      {"packed without round",
       [](auto& p) {
         p.use_packed_ue8m0 = true;
         p.out_sf.dtype = dtype::ue8m0x4;
         p.out_sf.extents[1] = (p.out_sf.extents[1] + 3) / 4;
       },
       "needs round_sf", 3},
      {"strides of out_sf", [](auto& p) { p.use_tma_aligned_col_major_sf = true; }, "out_sf.strides"},
      {"fmt", [](auto& p) { p.fmt = "e5m6"; }, "fmt = 'e5m6'"},
      {"no fmt", [](auto& p) { p.fmt = ""; }, "fmt = ''"},
  };
}
template <class P>
void add(std::vector<bad_problem<P>>& table, std::vector<bad_problem<P>> more) {
  table.insert(table.end(), more.begin(), more.end());
}

}  // namespace

TEST_CASE("quant: casts with given scales refuse bad problems") {
  auto token = rules_of_codes<per_token_cast_with_precomputed_sf>();
  add(token, {{"hidden_size", [](auto& p) { p.x.extents[1] = p.out.extents[1] = 160; },
               "hidden_size = 160: must be a multiple of 64", 1},
              {"whole row",
               [](auto& p) {
                 p.num_per_channels = 192;
                 p.out_sf.extents[1] = 1;
               },
               "num_per_channels = 192: must be one of 16, 32, 64, 128", 2}});
  expect_refusals<per_token_cast_with_precomputed_sf>(token_codes<per_token_cast_with_precomputed_sf>, token);
  auto block = rules_of_codes<per_block_cast_with_precomputed_sf>();
  add(block,
      {{"hidden_size",
        [](auto& p) {
          p.x.extents[1] = p.out.extents[1] = 160;
          p.out_sf.extents[1] = 5;
        },
        "hidden_size = 160: must be a multiple of 64", 1},
       {"block_rows", [](auto& p) { p.block_rows = 64; }, "block_rows = 64: must be one of 32, 128", 2},
       {"block_cols",
        [](auto& p) {
          p.block_cols = 64;
          p.out_sf.extents[1] = 3;
        },
        "block_cols = 64: must be one of 32, 128", 2}});
  expect_refusals<per_block_cast_with_precomputed_sf>(block_codes, block);
}

TEST_CASE("quant: scales only refuse bad problems") {
  auto token = rules_of_scales<per_token_cast_with_sf_only>();
  add(token, {{"hidden_size", [](auto& p) { p.x.extents[1] = 160; },
               "hidden_size = 160: must be a multiple of 64", 1},
              {"whole row",
               [](auto& p) {
                 p.num_per_channels = 192;
                 p.out_sf.extents[1] = 1;
               },
               "num_per_channels = 192: must be one of 16, 32, 64, 128", 2},
              {"e4m3 and rounded",
               [](auto& p) {
                 p.use_e4m3_sf = p.round_sf = true;
                 p.out_sf.dtype = dtype::e4m3;
               },
               "excludes round_sf", 3}});
  expect_refusals<per_token_cast_with_sf_only>(token_scales, token);
  auto block = rules_of_scales<per_block_cast_with_sf_only>();
  add(block, {{"hidden_size",
               [](auto& p) {
                 p.x.extents[1] = 160;
                 p.out_sf.extents[1] = 5;
               },
               "hidden_size = 160: must be a multiple of 64", 1},
              {"block_rows",
               [](auto& p) {
                 p.block_rows = 1;
                 p.out_sf.extents[0] = 40;
                 p.out_sf.strides = {6, 1};
               },
               "block_rows = 1: must be one of 32, 128", 2},
              {"block_cols",
               [](auto& p) {
                 p.block_cols = 64;
                 p.out_sf.extents[1] = 3;
               },
               "block_cols = 64: must be one of 32, 128", 2}});
  expect_refusals<per_block_cast_with_sf_only>(block_scales, block);
}

TEST_CASE("quant: scales only are those of the whole cast, and given back they give its codes") {
  memory m;
  struct layout {
    bool col, round, packed, e4m3;
    dtype type;
  };
  for (const layout& l :
       {layout{false, false, false, false, dtype::f32}, layout{true, true, false, false, dtype::f32},
        layout{true, true, true, false, dtype::ue8m0x4}, layout{false, true, true, false, dtype::ue8m0x4},
        layout{true, false, false, true, dtype::e4m3}})
    for (const dtype codes : {dtype::e4m3, dtype::e2m1x2}) {
      per_token_cast whole;
      whole.x = m.make(dtype::f32, {5, 192}, {200, 1});
      for (std::int64_t k = 0; k < 5 * 192; ++k)
        at<float>(whole.x, k / 192, k % 192) = static_cast<float>((k * 7919) % 1000 - 500) * 0.01f;
      whole.out = m.make(codes, {5, codes == dtype::e4m3 ? 192 : 96});
      const std::int64_t width = l.packed ? 2 : 6;
      whole.out_sf = l.col ? m.make(l.type, {5, width}, {1, 16}) : m.make(l.type, {5, width});
      whole.num_per_channels = 32;
      whole.use_tma_aligned_col_major_sf = l.col;
      whole.round_sf = l.round;
      whole.use_packed_ue8m0 = l.packed;
      whole.use_e4m3_sf = l.e4m3;
      run_on_host(whole);

      per_token_cast_with_sf_only only;
      only.x = whole.x;
      only.fmt = codes == dtype::e4m3 ? "e4m3" : "e2m1";
      only.out_sf = l.col ? m.make(l.type, {5, width}, {1, 16}) : m.make(l.type, {5, width});
      only.num_per_channels = 32;
      only.use_tma_aligned_col_major_sf = l.col;
      only.round_sf = l.round;
      only.use_packed_ue8m0 = l.packed;
      only.use_e4m3_sf = l.e4m3;
      run_on_host(only);
      CHECK(same_bytes(only.out_sf, whole.out_sf));

      if (l.packed || !(l.round || l.e4m3)) continue;  // 1 / sf is sf_inv for powers of two and e4m3 scales
      per_token_cast_with_precomputed_sf given;
      given.x = whole.x;
      given.out_sf = m.make(l.type, {5, 6});
      for (std::int64_t k = 0; k < 30; ++k) {
        if (l.e4m3)
          at<numeric::e4m3>(given.out_sf, k / 6, k % 6) = at<numeric::e4m3>(whole.out_sf, k / 6, k % 6);
        else
          at<float>(given.out_sf, k / 6, k % 6) = at<float>(whole.out_sf, k / 6, k % 6);
      }
      given.out = m.make(codes, {5, codes == dtype::e4m3 ? 192 : 96});
      given.num_per_channels = 32;
      run_on_host(given);
      CHECK(same_bytes(given.out, whole.out));
    }

  per_block_cast_with_sf_only only = block_scales(m);
  only.round_sf = true;
  run_on_host(only);
  per_block_cast whole;
  whole.x = only.x;
  whole.out = m.make(dtype::e4m3, {40, 192});
  whole.out_sf = m.make(dtype::f32, {2, 6});
  whole.block_rows = whole.block_cols = 32;
  whole.round_sf = true;
  run_on_host(whole);
  CHECK(same_bytes(only.out_sf, whole.out_sf));
  per_block_cast_with_precomputed_sf given;
  given.x = only.x;
  given.out_sf = only.out_sf;
  given.out = m.make(dtype::e4m3, {40, 192});
  given.block_rows = given.block_cols = 32;
  run_on_host(given);
  CHECK(same_bytes(given.out, whole.out));
  CHECK(m.guards_intact());
}

TEST_CASE("quant: given scales are taken as they are") {
  memory m;
  auto p = token_codes<per_token_cast_with_precomputed_sf>(m);
  at<float>(p.out_sf, 0, 0) = 0.0f;  // 1 / 0 = Inf: the largest code, NaN for a zero
  at<std::uint16_t>(p.x, 0, 0) = 0x0000;
  at<std::uint16_t>(p.x, 0, 1) = 0xBF80;  // -1
  at<std::uint16_t>(p.x, 1, 0) = 0x3F80;  // 1 / 0.01 = 100: between 96 and 104, nearer to neither, even is 96
  run_on_host(p);
  CHECK(at<unsigned char>(p.out, 0, 0) == 0x7F);
  CHECK(at<unsigned char>(p.out, 0, 1) == 0xFE);
  CHECK(get(p.out, 1, 0) == numeric::to_float(numeric::to_e4m3(1.0f * (1.0f / 0.01f))));
  p.x = without_rows(p.x);
  p.out = without_rows(p.out);
  p.out_sf = without_rows(p.out_sf);
  CHECK_NOTHROW(run_on_host(p));
  auto s = token_scales(m);
  s.x = without_rows(s.x);
  s.out_sf = without_rows(s.out_sf);
  CHECK_NOTHROW(run_on_host(s));
  auto b = block_scales(m);
  b.x = without_rows(b.x);
  b.out_sf = without_rows(b.out_sf);
  CHECK_NOTHROW(run_on_host(b));
  CHECK(m.guards_intact());
}
