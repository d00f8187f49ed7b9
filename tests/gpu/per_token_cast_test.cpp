#include "gpu/against_reference.hpp"

#include <cmath>
#include <random>

#include "support/random.hpp"

using namespace portile;
using namespace portile::test;
using quant::per_token_cast;

namespace {

std::string text_of(const per_token_cast& p) {
  std::string s;
  for (const field_info& f : get_operation(per_token_cast::name).fields)
    s += f.name + " = " + (f.kind == field_kind::tensor ? f.tensor_in(&p).text() : f.attribute_text(&p)) +
         "; ";
  return s;
}

per_token_cast random_problem(memory& m, randomness& r) {
  per_token_cast p;
  const dtype in = r.pick({dtype::bf16, dtype::bf16, dtype::f32, dtype::e4m3, dtype::e2m1x2});
  const bool quantised = in == dtype::e4m3 || in == dtype::e2m1x2;
  const dtype codes = quantised ? r.pick({dtype::e4m3, dtype::e2m1x2})
                                : r.pick({dtype::e4m3, dtype::e4m3, dtype::e2m1x2, dtype::e5m6x8});
  const std::int64_t rows = r.pick<std::int64_t>({0, 1, 2, 5, 17, 40});
  const std::int64_t hidden = codes == dtype::e5m6x8 ? 8 * r.number(1, 70) : 64 * r.number(1, 9);
  const bool whole_row = codes == dtype::e5m6x8 || (!quantised && r.one_in(5));
  p.num_per_channels = whole_row ? hidden : r.pick<std::int64_t>({16, 32, 64, 128, 128});
  p.x = r.matrix(m, in, rows, hidden);
  r.fill(p.x);
  p.out = r.matrix(m, codes, rows, hidden);
  if (quantised) {
    p.x_block_rows = r.pick<std::int64_t>({1, 1, 4, 32, 128});
    p.x_block_cols = r.pick<std::int64_t>({1, 16, 24, 32, 128, 128});
    const std::int64_t sf_rows = numeric::ceil_div(rows, p.x_block_rows),
                       sf_cols = numeric::ceil_div(hidden, p.x_block_cols);
    const dtype sf = r.pick({dtype::f32, dtype::f32, dtype::e4m3, dtype::ue8m0x4});
    const bool along_rows = sf == dtype::ue8m0x4 && p.x_block_cols == 1;
    const std::int64_t stored_rows = along_rows ? numeric::ceil_div(sf_rows, 4) : sf_rows;
    const std::int64_t stored_cols =
        sf == dtype::ue8m0x4 && !along_rows ? numeric::ceil_div(sf_cols, 4) : sf_cols;
    const std::int64_t ld = numeric::align_up(std::max<std::int64_t>(stored_rows, 1), 4);
    p.x_sf = r.one_in(2) ? m.make(sf, {stored_rows, stored_cols})
                         : m.make(sf, {stored_rows, stored_cols}, {1, ld});
    r.fill_scales(p.x_sf);
  }
  p.round_sf = r.one_in(2);
  p.use_e4m3_sf = !p.round_sf && codes != dtype::e5m6x8 && r.one_in(2);
  p.use_packed_ue8m0 = p.round_sf && r.one_in(2);
  p.use_tma_aligned_col_major_sf = r.one_in(2);
  p.stochastic_rounding = codes != dtype::e5m6x8 && r.one_in(4);
  const std::int64_t groups = numeric::ceil_div(hidden, p.num_per_channels);
  const dtype sf = p.use_packed_ue8m0 ? dtype::ue8m0x4 : p.use_e4m3_sf ? dtype::e4m3 : dtype::f32;
  const std::int64_t width = stored_extent(sf, groups);
  if (p.use_tma_aligned_col_major_sf)
    p.out_sf = m.make(sf, {rows, width}, {1, numeric::align_up(std::max<std::int64_t>(rows, 1), 16)});
  else
    p.out_sf = m.make(sf, {rows, width});
  return p;
}

}  // namespace

TEST_CASE("quant.per_token_cast: random problems give the reference's bits") {
  for (unsigned seed = 1; seed <= trials(250); ++seed) {
    memory m;
    randomness r(seed);
    const per_token_cast p = random_problem(m, r);
    INFO("seed " << seed << ": " << text_of(p));
    REQUIRE(check(p).text() == "");
    expect_as_reference(p);
    CHECK(m.guards_intact());
  }
}

TEST_CASE("quant.per_token_cast: every bf16 value gives the reference's bits") {
  // 65,536 values as groups of one repeated magnitude class, so that codes of all sizes occur.
  for (const dtype codes : {dtype::e4m3, dtype::e2m1x2}) {
    memory m;
    per_token_cast p;
    p.x = m.make(dtype::bf16, {64, 1024});
    for (std::int64_t i = 0; i < 65536; ++i)
      static_cast<std::uint16_t*>(p.x.data)[i] = static_cast<std::uint16_t>(i * 40503);
    p.out = m.make(codes, {64, codes == dtype::e4m3 ? 1024 : 512});
    p.out_sf = m.make(dtype::f32, {64, 32});
    p.num_per_channels = 32;
    expect_as_reference(p);
    p.round_sf = true;
    expect_as_reference(p);
  }
}

TEST_CASE("quant.per_token_cast: rows of stride 0") {
  // The rows of x are the same memory.
  memory m;
  per_token_cast p;
  p.x = m.make(dtype::bf16, {300, 256}, {0, 1});
  fill_normal(make_tensor(p.x.data, dtype::bf16, {1, 256}), 3);
  p.out = m.make(dtype::e4m3, {300, 256});
  p.out_sf = m.make(dtype::f32, {300, 2});
  expect_as_reference(p);
}
