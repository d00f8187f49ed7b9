#pragma once
// The loop nest of the casts with one scale per block: per token, per block, scales only, given scales.
#include "backends/reference/scales.hpp"

namespace portile::quant {

struct block_cast {
  tensor x{};
  tensor x_sf{};  ///< scales of a quantised x, one per x_block_rows x x_block_cols; absent: 1
  std::int64_t x_block_rows = 1, x_block_cols = 1;
  tensor out{};               ///< absent: scales only
  tensor out_sf{};            ///< one scale per block
  dtype codes = dtype::none;  ///< format of out
  bool given_sf = false;      ///< out_sf is an input, used as it is
  std::int64_t block_rows = 1, block_cols = 1;
  scale_flags flags{};
  bool stochastic_rounding = false;
};

/// Per block: out_sf = scale of amax |x * x_sf|, out = encode(x * (x_sf * sf_inv)). In: the types that x may
/// have.
template <class... In, class Space>
void cast_blocks(const Space& space, const block_cast& p) {
  using namespace portile::reference;
  using numeric::float_bits;
  const std::int64_t rows = p.x.extent(0), cols = value_extent(p.x.dtype, p.x.extent(1));
  const std::int64_t block_rows = p.block_rows, block_cols = p.block_cols;
  const std::int64_t x_block_rows = p.x_sf ? p.x_block_rows : 1, x_block_cols = p.x_sf ? p.x_block_cols : 1;
  const scale_reader x_sf(p.x_sf, x_block_cols == 1), given_sf(p.out_sf, false);
  const scale_writer out_sf(p.given_sf ? tensor{} : p.out_sf, false);
  const scale_rule rule(p.codes, p.flags);
  const bool stochastic = p.stochastic_rounding, encodes = p.out.defined(), given = p.given_sf;

  visit<In...>(p.x.dtype, [&](auto in) {
    visit<numeric::e4m3, numeric::e2m1x2, numeric::e5m6x8>(p.codes, [&](auto code) {
      const matrix_reader<decltype(in)> x(p.x);
      const matrix_writer<decltype(code)> out(p.out);
      space.for_each(
          numeric::ceil_div(rows, block_rows), KOKKOS_LAMBDA(std::int64_t i) {
            for (std::int64_t j = 0; j * block_cols < cols; ++j) {
              const block b = block::at(i, j, block_rows, block_cols, rows, cols);
              const auto sf_at = [&](std::int64_t r, std::int64_t c) {
                return x_sf(r / x_block_rows, c / x_block_cols);
              };
              float sf_inv;
              if (given) {
                sf_inv = 1.0f / given_sf(i, j);
              } else {
                const numeric::scale s =
                    rule(b.amax([&](std::int64_t r, std::int64_t c) { return x(r, c) * sf_at(r, c); }));
                out_sf(i, j, s);
                sf_inv = s.sf_inv;
              }
              if (!encodes) continue;
              const auto scaled = [&](std::int64_t r, std::int64_t c) {
                return x(r, c) * (sf_at(r, c) * sf_inv);
              };
              b.for_each([&](std::int64_t r, std::int64_t c) {
                if (!stochastic) {
                  out(r, c, scaled(r, c));
                  return;
                }
                // The random word of a quad is a hash of its four scaled values and its column.
                const std::int64_t q = c / 4 * 4;
                const auto words = numeric::sr_hash(
                    float_bits(scaled(r, q)), float_bits(scaled(r, q + 1)), float_bits(scaled(r, q + 2)),
                    float_bits(scaled(r, q + 3)), static_cast<std::uint32_t>(c / 4));
                out.stochastic(r, c, scaled(r, c), words.r0);
              });
            }
          });
    });
  });
}

}  // namespace portile::quant
