#include <portile/kernels/quant/per_block_cast.hpp>
#include <portile/kernels/quant/per_block_cast_with_precomputed_sf.hpp>
#include <portile/kernels/quant/per_block_cast_with_sf_only.hpp>

#include "backends/gpu/quant/run.hpp"
#include "backends/gpu/quant/tile.hpp"

namespace portile::gpu {
namespace {

template <class In, class Code>
struct block_params {
  const In* x;
  Code* out;
  std::int64_t x_stride, out_stride, rows, cols;
  scale_writer out_sf;
  scale_reader given_sf;  ///< present: the scales are inputs
  quant::scale_flags flags;
  float clamp;
  int row_shift, col_shift;  ///< log2 of the block's sides
  bool encodes;

  PORTILE_DEVICE bool given() const { return given_sf.data != nullptr; }
  PORTILE_DEVICE numeric::scale scale_of(float amax) const {
    return make_scale(amax, clamp, quant::max_code(dtype_of<Code>), flags);
  }
};

/// A tile of 128 x 128 values a thread block; blocks of 32 or 128 rows and columns lie in one tile. All rows
/// are aligned. A thread holds 16 columns of two neighbouring rows, eight lanes a row.
template <class In, class Code>
struct block_cast {
  static constexpr int threads = tile::threads;
  static constexpr int min_blocks = sizeof(In) == 4 ? 2 : 3;
  struct params : block_params<In, Code> {
    tile_grid tiles;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    // amax of the tile's blocks as fp32 bits, which are in the order of the values; at most 4 x 4.
    auto* amax_bits = block.template shared<std::uint32_t>();
    const auto thread = static_cast<unsigned>(block.thread());
    const unsigned per_row = tile::size >> p.col_shift, count = per_row * (tile::size >> p.row_shift);
    const unsigned col = thread % tile::lanes * tile::values, row = thread / tile::lanes * 2;
    std::uint32_t* own = amax_bits + (row >> p.row_shift) * per_row + (col >> p.col_shift);
    for (std::int64_t index = block.index(); index < p.tiles.count; index += block.grid()) {
      const tile_at at = p.tiles.at(index);
      const bool upper = at.holds(p.tiles, row, col), lower = at.holds(p.tiles, row + 1, col);
      const In* x = p.x + (at.row + row) * p.x_stride + at.col + col;
      run16<In> v[2];
      if (upper) v[0].load(x);
      if (lower) v[1].load(x + p.x_stride);
      if (!p.given()) {
        if (thread < count) amax_bits[thread] = 0;
        block.barrier();
      }
      float amax = larger{}(v[0].amax(), v[1].amax());
      if (!p.given()) {
        // A wave's rows lie in one block.
        const int lanes_across = p.col_shift == 5 ? 2 : tile::lanes;
        for (int m = 1; m < Block::wave_size; m *= 2)
          if (m < lanes_across || m >= tile::lanes) amax = larger{}(amax, block.shuffle_xor(amax, m));
        if (block.lane() < tile::lanes && block.lane() % lanes_across == 0)
          block.atomic_max(own, numeric::float_bits(amax));
        block.barrier();
        amax = numeric::bits_float(*own);
        const unsigned r = thread / per_row, c = thread % per_row;
        if (thread < count && at.holds(p.tiles, r << p.row_shift, c << p.col_shift))
          p.out_sf((at.row >> p.row_shift) + r, (at.col >> p.col_shift) + c,
                   p.scale_of(numeric::bits_float(amax_bits[thread])));
      }
      if (p.encodes && upper) {
        const float factor =
            p.given() ? 1.0f / p.given_sf((at.row + row) >> p.row_shift, (at.col + col) >> p.col_shift)
                      : p.scale_of(amax).sf_inv;
        Code* out = p.out + (at.row + row) * p.out_stride + code_offset<Code>(at.col + col);
        const bool power_of_two = p.flags.round && !p.given();
        v[0].encode(out, factor, power_of_two);
        if (lower) v[1].encode(out + p.out_stride, factor, power_of_two);
      }
      if (index + block.grid() < p.tiles.count) block.barrier();
    }
  }
};

/// Rows at any address: a wave a block.
template <class In, class Code>
struct any_block_cast {
  static constexpr int threads = 256;
  struct params : block_params<In, Code> {
    std::int64_t blocks;
    divider width;  ///< blocks in a row
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * Block::num_waves;
    for (std::int64_t b = block.index() * Block::num_waves + block.wave(); b < p.blocks; b += step) {
      const std::int64_t i = p.width.quotient(b), j = b - i * p.width.value();
      const std::int64_t row = i << p.row_shift, col = j << p.col_shift;
      const std::int64_t row_below = row + (std::int64_t{1} << p.row_shift);
      const std::int64_t col_below = col + (std::int64_t{1} << p.col_shift);
      const std::int64_t row_end = row_below < p.rows ? row_below : p.rows;
      const std::int64_t col_end = col_below < p.cols ? col_below : p.cols;
      float factor;
      if (p.given()) {
        factor = 1.0f / p.given_sf(i, j);
      } else {
        float amax = 0.0f;
        PORTILE_NO_UNROLL
        for (std::int64_t r = row; r < row_end; ++r) {
          for (std::int64_t c = col + block.lane(); c < col_end; c += Block::wave_size)
            amax = amax_step(amax, load_value(p.x + r * p.x_stride, c));
        }
        const numeric::scale s = p.scale_of(reduce_wave(block, amax, larger{}));
        if (block.lane() == 0) p.out_sf(i, j, s);
        factor = s.sf_inv;
      }
      if (!p.encodes) continue;
      PORTILE_NO_UNROLL
      for (std::int64_t r = row; r < row_end; ++r) {
        for (std::int64_t c = col + 2 * block.lane(); c < col_end; c += 2 * Block::wave_size) {
          const In* x = p.x + r * p.x_stride;
          const float even = load_value(x, c) * factor, odd = load_value(x, c + 1) * factor;
          Code* out = p.out + r * p.out_stride + code_offset<Code>(c);
          if constexpr (std::is_same_v<Code, numeric::e4m3>) {
            out[0] = numeric::to_e4m3(even);
            out[1] = numeric::to_e4m3(odd);
          } else {
            *out = {static_cast<std::uint8_t>(to_e2m1_code(even) | to_e2m1_code(odd) << 4)};
          }
        }
      }
    }
  }
};

/// What the three operations ask for.
struct matrix_cast {
  tensor x{};
  tensor out{};  ///< absent: scales only
  tensor out_sf{};
  dtype codes = dtype::none;
  bool given_sf = false;
  std::int64_t block_rows = 0, block_cols = 0;
  quant::scale_flags flags{};
};

void launch_cast(const context& c, const matrix_cast& p) {
  visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
    visit<numeric::e4m3, numeric::e2m1x2>(p.codes, [&](auto code) {
      using in_type = decltype(in);
      using code_type = decltype(code);
      block_params<in_type, code_type> k;
      k.x = static_cast<const in_type*>(p.x.data);
      k.out = static_cast<code_type*>(p.out.data);
      k.x_stride = p.x.stride(0);
      k.out_stride = p.out.stride(0);
      k.rows = p.x.extent(0);
      k.cols = p.x.extent(1);
      const std::int64_t width = numeric::ceil_div(k.cols, p.block_cols);
      if (p.given_sf)
        k.given_sf = scale_reader(p.out_sf, false);
      else
        k.out_sf = scale_writer(p.out_sf, width);
      k.flags = p.flags;
      k.clamp = quant::amax_clamp(p.codes, p.flags);
      k.row_shift = shift_of(p.block_rows);
      k.col_shift = shift_of(p.block_cols);
      k.encodes = p.out.defined();
      const tile_grid tiles(k.rows, k.cols);
      const bool aligned = loads_aligned<in_type, tile::values>(p.x) &&
                           (!k.encodes || stores_aligned<code_type, tile::values>(p.out));
      if (aligned && tiles.fits()) {
        using kernel = block_cast<in_type, code_type>;
        return gpu::launch<kernel>(c, tiles.count, 16 * sizeof(std::uint32_t), {k, tiles});
      }
      using kernel = any_block_cast<in_type, code_type>;
      const std::int64_t blocks = width * numeric::ceil_div(k.rows, p.block_rows);
      if (blocks == 0) return;
      gpu::launch<kernel>(c, numeric::ceil_div(blocks, kernel::threads / c.call.device->wave_size), 0,
                          {k, blocks, divider(width, blocks)});
    });
  });
}

struct per_block_cast_simt {
  static void launch(const context& c, const quant::per_block_cast& p) {
    launch_cast(c, {.x = p.x,
                    .out = p.out,
                    .out_sf = p.out_sf,
                    .codes = p.out.dtype,
                    .block_rows = p.block_rows,
                    .block_cols = p.block_cols,
                    .flags = quant::flags_of(p)});
  }
};
struct per_block_cast_with_precomputed_sf_simt {
  static void launch(const context& c, const quant::per_block_cast_with_precomputed_sf& p) {
    launch_cast(c, {.x = p.x,
                    .out = p.out,
                    .out_sf = p.out_sf,
                    .codes = p.out.dtype,
                    .given_sf = true,
                    .block_rows = p.block_rows,
                    .block_cols = p.block_cols});
  }
};
struct per_block_cast_with_sf_only_simt {
  static void launch(const context& c, const quant::per_block_cast_with_sf_only& p) {
    launch_cast(c, {.x = p.x,
                    .out_sf = p.out_sf,
                    .codes = quant::dtype_of_format(p.fmt, dtype::none),
                    .block_rows = p.block_rows,
                    .block_cols = p.block_cols,
                    .flags = quant::flags_of(p)});
  }
};

}  // namespace

extern const portile_implementation quant_per_block_cast_simt, quant_per_block_cast_with_precomputed_sf_simt,
    quant_per_block_cast_with_sf_only_simt;
const portile_implementation quant_per_block_cast_simt =
    make_simt<quant::per_block_cast, per_block_cast_simt>();
const portile_implementation quant_per_block_cast_with_precomputed_sf_simt =
    make_simt<quant::per_block_cast_with_precomputed_sf, per_block_cast_with_precomputed_sf_simt>();
const portile_implementation quant_per_block_cast_with_sf_only_simt =
    make_simt<quant::per_block_cast_with_sf_only, per_block_cast_with_sf_only_simt>();

}  // namespace portile::gpu
