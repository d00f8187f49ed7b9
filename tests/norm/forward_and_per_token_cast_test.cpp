#include "norm/norm_cases.hpp"

using namespace portile;
using namespace portile::test;
using norm::forward_and_per_token_cast;

namespace {

forward_and_per_token_cast good_of(memory& m, dtype type, dtype codes, std::int64_t tokens,
                                   std::int64_t hidden) {
  forward_and_per_token_cast p;
  p.x = m.make(type, {tokens, hidden});
  p.residual = m.make(type, {tokens, hidden});
  p.weight = m.make(type, {hidden});
  p.out = m.make(codes, {tokens, stored_extent(codes, hidden)});
  p.out_sf = m.make(dtype::f32, {tokens, hidden / 32});
  p.out_bf16 = m.make(dtype::bf16, {tokens, hidden});
  p.residual_out = m.make(type, {tokens, hidden});
  p.rstd = m.make(dtype::f32, {tokens});
  fill_normal(p.x, 1);
  fill_normal(p.residual, 2);
  fill_normal(p.weight, 3);
  return p;
}
forward_and_per_token_cast good(memory& m) { return good_of(m, dtype::bf16, dtype::e4m3, 3, 96); }
forward_and_per_token_cast good_mega(memory& m) {
  forward_and_per_token_cast p = good_of(m, dtype::bf16, dtype::e4m3, 5, 256);
  p.round_sf = true;
  p.mega_moe_block_m = 2;
  p.mega_moe_sf = m.make(dtype::ue8m0x4, {384, 2}, {1, 384});
  return p;
}

}  // namespace

TEST_CASE("norm.forward_and_per_token_cast refuses bad problems") {
  expect_refusals<forward_and_per_token_cast>({
      {good,
       {
           {"x absent", [](auto& p) { p.x = {}; }, "x = absent: is required"},
           {"out_sf absent", [](auto& p) { p.out_sf = {}; }, "out_sf = absent: is required"},
           {"hidden_size",
            [](auto& p) {
              p.residual = p.weight = p.residual_out = p.out_bf16 = p.rstd = {};
              p.x.extents[1] = p.out.extents[1] = 80;
            },
            "hidden_size = 80: must be a multiple of 32", 1},
           {"hidden too large",
            [](auto& p) {
              p.residual = p.weight = p.residual_out = p.out_bf16 = p.rstd = {};
              p.x.extents = p.out.extents = {1, 8224};
              p.out_sf.extents = {1, 257};
            },
            "hidden_size = 8224: must be 1 to 8192", 1},
           {"no channels",
            [](auto& p) {
              p.residual = p.weight = p.residual_out = p.out_bf16 = p.rstd = {};
              p.x.extents[1] = p.out.extents[1] = p.out_sf.extents[1] = 0;
            },
            "hidden_size = 0: must be 1 to 8192", 1},
           {"row stride", [](auto& p) { p.x.strides[0] = 100; },
            "x.strides[0] = 100: must be a multiple of 16", 2},
           {"batch stride",
            [](auto& p) {
              p.residual = p.residual_out = p.out_bf16 = p.rstd = {};
              p.x.rank = p.out.rank = p.out_sf.rank = 3;
              p.x.extents = p.out.extents = {2, 1, 96};
              p.x.strides = {104, 96, 1};
              p.out.strides = {96, 96, 1};
              p.out_sf.extents = {2, 1, 3};
              p.out_sf.strides = {3, 3, 1};
            },
            "x.strides[0] = 104: must be a multiple of 16", 2},
           {"strided weight", [](auto& p) { p.weight.strides[0] = 2; }, "must be contiguous", 3},
           {"type of weight", [](auto& p) { p.weight.dtype = dtype::f32; },
            "weight.dtype = f32: must be bf16", 3},
           {"type of residual", [](auto& p) { p.residual.dtype = dtype::f32; },
            "residual.dtype = f32: must be bf16"},
           {"type of residual_out", [](auto& p) { p.residual_out.dtype = dtype::f32; },
            "residual_out.dtype = f32: must be bf16"},
           {"num_per_channels",
            [](auto& p) {
              p.num_per_channels = 128;
              p.out_sf.extents[1] = 1;
            },
            "num_per_channels = 128: must be 32", 4},
           {"columns of out_sf", [](auto& p) { p.out_sf.extents[1] = 2; }, "out_sf.extents[1] = 2"},
           {"packed without round_sf",
            [](auto& p) {
              p.use_packed_ue8m0 = true;
              p.out_sf.dtype = dtype::ue8m0x4;
              p.out_sf.extents[1] = 1;
            },
            "needs round_sf", 5},
           {"type of out_sf", [](auto& p) { p.round_sf = p.use_packed_ue8m0 = true; },
            "out_sf.dtype = f32: must be ue8m0x4"},
           {"layout of out_sf", [](auto& p) { p.use_tma_aligned_col_major_sf = true; }, "out_sf.strides"},
           {"fmt against out", [](auto& p) { p.fmt = "e2m1"; }, "must be empty or 'e4m3'"},
           {"unknown fmt", [](auto& p) { p.fmt = "e5m6"; }, "fmt = 'e5m6'"},
           {"type of out_bf16", [](auto& p) { p.out_bf16.dtype = dtype::f32; },
            "out_bf16.dtype = f32: must be bf16"},
           {"rank of out_sf",
            [](auto& p) {
              p.out_sf.rank = 3;
              p.out_sf.extents = {1, 3, 3};
              p.out_sf.strides = {9, 3, 1};
            },
            "out_sf.rank = 3: must be 2"},
           {"block_m without its tensor", [](auto& p) { p.mega_moe_block_m = 8; },
            "mega_moe_block_m = 8: must be 0 without mega_moe_sf"},
           {"out overlaps itself", [](auto& p) { p.out.strides[0] = 64; }, "must not overlap itself"},
       }},
      {good_mega,
       {
           {"without block_m", [](auto& p) { p.mega_moe_block_m = 0; },
            "mega_moe_block_m = 0: must be positive with mega_moe_sf"},
           {"huge block_m", [](auto& p) { p.mega_moe_block_m = std::int64_t{1} << 31; },
            "mega_moe_block_m = 2147483648: must be below 2^31"},
           {"negative block_m", [](auto& p) { p.mega_moe_block_m = -2; },
            "mega_moe_block_m = -2: must be positive"},
           {"without round_sf", [](auto& p) { p.round_sf = false; },
            "round_sf = false: must be set with mega_moe_sf", 6},
           {"three dimensions",
            [](auto& p) {
              p.residual = p.residual_out = p.out_bf16 = p.rstd = {};
              p.x.rank = p.out.rank = p.out_sf.rank = 3;
              p.x.extents = p.out.extents = {1, 5, 256};
              p.x.strides = p.out.strides = {1280, 256, 1};
              p.out_sf.extents = {1, 5, 8};
              p.out_sf.strides = {40, 8, 1};
            },
            "x.rank = 3: must be 2 with mega_moe_sf", 6},
           {"too few rows", [](auto& p) { p.mega_moe_sf.extents[0] = 383; },
            "mega_moe_sf.extents[0] = 383: must be at least", 6},
           {"row-major",
            [](auto& p) {
              p.mega_moe_sf.strides = {2, 1};
            },
            "it is column-major"},
           {"columns", [](auto& p) { p.mega_moe_sf.extents[1] = 1; }, "mega_moe_sf.extents[1] = 1"},
           {"hidden_size",
            [](auto& p) {
              p.residual = p.weight = p.residual_out = p.out_bf16 = {};
              p.x.extents[1] = p.out.extents[1] = 224;
              p.out_sf.extents[1] = 7;
            },
            "hidden_size = 224: must be a multiple of 128", 6},
       }},
  });
}

TEST_CASE("norm.forward_and_per_token_cast equals norm.forward, then quant.per_token_cast") {
  const dtype type = GENERATE(dtype::bf16, dtype::f32), codes = GENERATE(dtype::e4m3, dtype::e2m1x2);
  struct flags {
    bool col, round, packed;
  };
  const auto f = GENERATE(flags{false, false, false}, flags{true, false, false}, flags{true, true, true},
                          flags{false, true, true});
  constexpr std::int64_t tokens = 5, hidden = 192;
  memory m;
  forward_and_per_token_cast p = good_of(m, type, codes, tokens, hidden);
  p.use_tma_aligned_col_major_sf = f.col;
  p.round_sf = f.round;
  p.use_packed_ue8m0 = f.packed;
  p.out_scale = 3;
  const output_spec sf = infer(p).at(1);
  p.out_sf = m.make(sf.dtype, sf.extents, sf.strides);

  norm::forward first;
  first.x = p.x;
  first.residual = p.residual;
  first.weight = p.weight;
  first.out_scale = 3;
  first.out = m.make(type, {tokens, hidden});
  first.residual_out = m.make(type, {tokens, hidden});
  first.rstd = m.make(dtype::f32, {tokens});
  quant::per_token_cast second;
  second.x = first.out;
  second.out = m.make(codes, {tokens, stored_extent(codes, hidden)});
  second.out_sf = m.make(sf.dtype, sf.extents, sf.strides);
  second.num_per_channels = 32;
  second.use_tma_aligned_col_major_sf = f.col;
  second.round_sf = f.round;
  second.use_packed_ue8m0 = f.packed;
  queue q{cpu_selector};
  run(q, p);
  run(q, first);
  run(q, second);
  CHECK(same_bytes(p.out, second.out, 0, 0, p.out.numel()));
  CHECK(same_bytes(p.out_sf, second.out_sf, 0, 0, p.out_sf.span()));
  CHECK(same_bytes(p.residual_out, first.residual_out, 0, 0, tokens * hidden));
  CHECK(same_bytes(p.rstd, first.rstd, 0, 0, tokens));
  for (std::int64_t i = 0; i < tokens * hidden; ++i)
    REQUIRE(element(p.out_bf16, i) == rounded_to(dtype::bf16, element(first.out, i)));

  // The same rows as one batch of the three-dimensional form, in two batches of other data.
  forward_and_per_token_cast batched = p;
  const auto spread = [&](const tensor& from) {
    tensor t = m.make(type, {2, tokens, hidden});
    fill_normal(t, 9);
    std::memcpy(static_cast<char*>(t.data) + tokens * hidden * size_of(type), from.data,
                static_cast<std::size_t>(tokens * hidden * size_of(type)));
    return t;
  };
  batched.x = spread(p.x);
  batched.residual = spread(p.residual);
  batched.out = m.make(codes, {2, tokens, stored_extent(codes, hidden)});
  batched.out_bf16 = batched.residual_out = batched.rstd = {};
  const output_spec sf3 = infer(batched).at(1);
  batched.out_sf = m.make(sf3.dtype, sf3.extents, sf3.strides);
  CHECK(sf3.strides[0] >= p.out_sf.span());
  run(q, batched);
  CHECK(same_bytes(p.out, batched.out, 0, p.out.numel(), p.out.numel()));
  CHECK(same_bytes(p.out_sf, batched.out_sf, 0, sf3.strides[0], p.out_sf.span()));
  CHECK(m.guards_intact());
}

TEST_CASE("norm.forward_and_per_token_cast places the exponents of blocks of tokens") {
  for (std::int64_t block_m : {1, 2, 32, 130, 200}) {
    constexpr std::int64_t tokens = 300, hidden = 256;
    memory m;
    forward_and_per_token_cast p = good_of(m, dtype::bf16, dtype::e4m3, tokens, hidden);
    p.round_sf = true;
    p.mega_moe_block_m = block_m;
    const output_spec spec = infer(p).back();
    REQUIRE(spec.field == "mega_moe_sf");
    const std::int64_t padded = (block_m + 127) / 128 * 128, rows = (tokens + block_m - 1) / block_m * padded;
    REQUIRE(spec.extents == std::vector<std::int64_t>{rows, 2});
    p.mega_moe_sf = m.make(dtype::ue8m0x4, spec.extents, spec.strides);
    queue q{cpu_selector};
    run(q, p);
    std::vector<bool> used(static_cast<std::size_t>(rows));
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t i = t % block_m,
                         row = t / block_m * padded + i / 128 * 128 + i % 32 * 4 + i % 128 / 32;
      CHECK(!used[static_cast<std::size_t>(row)]);
      used[static_cast<std::size_t>(row)] = true;
      for (std::int64_t g = 0; g < 8; ++g) {
        const auto word = at<std::uint32_t>(p.mega_moe_sf, row, g / 4);
        REQUIRE((word >> (8 * (g % 4)) & 255) == numeric::float_bits(at<float>(p.out_sf, t, g)) >> 23);
      }
    }
    for (std::int64_t r = 0; r < rows; ++r)
      if (!used[static_cast<std::size_t>(r)]) REQUIRE(at<std::uint32_t>(p.mega_moe_sf, r, 1) == 0xA5A5A5A5u);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("norm.forward_and_per_token_cast of zeros and without tokens") {
  memory m;
  forward_and_per_token_cast p = good(m);
  p.residual = p.weight = {};
  for (std::int64_t j = 0; j < 96; ++j) set_element(p.x, j, 0);
  queue q{cpu_selector};
  run(q, p);
  for (std::int64_t j = 0; j < 96; ++j) CHECK(at<unsigned char>(p.out, 0, j) == 0);
  CHECK(numeric::float_bits(at<float>(p.out_sf, 0, 2)) == 0x346FACADu);
  using P = forward_and_per_token_cast;
  for (tensor P::*t : {&P::x, &P::out, &P::out_sf, &P::out_bf16, &P::residual_out, &P::rstd}) {
    (p.*t).extents[0] = 0;
    (p.*t).data = nullptr;
  }
  CHECK_NOTHROW(run(q, p));
}
