#include <portile/kernels/quant/per_block_cast.hpp>
#include <portile/kernels/quant/per_block_cast_with_precomputed_sf.hpp>
#include <portile/kernels/quant/per_block_cast_with_sf_only.hpp>

#include "backends/gpu/quant/tile.hpp"

namespace portile::gpu {
namespace {

/// A tile of 128 x 128 values a thread block; blocks of 32 or 128 rows and columns lie in one tile.
template <class In, class Code>
struct block_cast {
  static constexpr int threads = tile::threads, values = tile::values;
  struct params {
    const In* x;
    Code* out;
    std::int64_t x_stride, out_stride;
    tile_grid tiles;
    scale_writer out_sf;
    scale_reader given_sf;  ///< present: the scales are inputs
    quant::scale_flags flags;
    float clamp;
    int row_shift, col_shift;  ///< log2 of the block's sides
    bool x_aligned, out_aligned, encodes;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    // amax of the tile's blocks as fp32 bits, which are in the order of the values; at most 4 x 4.
    auto* amax_bits = block.template shared<std::uint32_t>();
    const int per_row = tile::size >> p.col_shift, count = per_row * (tile::size >> p.row_shift);
    const bool given = p.given_sf.data != nullptr;
    const int col = tile::column(block.thread());
    for (std::int64_t index = block.index(); index < p.tiles.count; index += block.grid()) {
      const tile_at at = p.tiles.at(index);
      float v[tile::passes][values];
      PORTILE_UNROLL
      for (int i = 0; i < tile::passes; ++i) {
        const int row = tile::row(block.thread(), i);
        if (at.holds(p.tiles, row, col)) {
          load_chunk<values>(p.x + (at.row + row) * p.x_stride, at.col + col, p.x_aligned, v[i]);
        } else {
          PORTILE_UNROLL
          for (int k = 0; k < values; ++k) v[i][k] = 0.0f;
        }
      }
      if (!given) {
        if (block.thread() < count) amax_bits[block.thread()] = 0;
        block.barrier();
        PORTILE_UNROLL
        for (int i = 0; i < tile::passes; ++i) {
          // A wave's rows lie in one block.
          float a = amax_of<values>(0.0f, v[i]);
          for (int m = 1; m < Block::wave_size; m *= 2) {
            if (m < tile::lanes && m * values >= 1 << p.col_shift) continue;
            a = larger{}(a, block.shuffle_xor(a, m));
          }
          const int lane_col = block.lane() % tile::lanes;
          if (block.lane() < tile::lanes && lane_col * values % (1 << p.col_shift) == 0)
            block.atomic_max(amax_bits + block_of(p, tile::row(block.thread(), i), col, per_row),
                             numeric::float_bits(a));
        }
        block.barrier();
        const int r = block.thread() / per_row, c = block.thread() % per_row;
        if (block.thread() < count && at.holds(p.tiles, r << p.row_shift, c << p.col_shift))
          p.out_sf((at.row >> p.row_shift) + r, (at.col >> p.col_shift) + c,
                   make_scale(numeric::bits_float(amax_bits[block.thread()]), p.clamp,
                              quant::max_code(dtype_of<Code>), p.flags));
      }
      PORTILE_UNROLL
      for (int i = 0; i < tile::passes; ++i) {
        const int row = tile::row(block.thread(), i);
        if (!p.encodes || !at.holds(p.tiles, row, col)) continue;
        const float sf_inv =
            given ? 1.0f / p.given_sf((at.row + row) >> p.row_shift, (at.col + col) >> p.col_shift)
                  : make_scale(numeric::bits_float(amax_bits[block_of(p, row, col, per_row)]), p.clamp,
                               quant::max_code(dtype_of<Code>), p.flags)
                        .sf_inv;
        PORTILE_UNROLL
        for (int k = 0; k < values; ++k) v[i][k] *= sf_inv;
        store_chunk<values>(p.out + (at.row + row) * p.out_stride, at.col + col, p.out_aligned, v[i]);
      }
      block.barrier();
    }
  }

 private:
  static PORTILE_DEVICE int block_of(const params& p, int row, int col, int per_row) {
    return (row >> p.row_shift) * per_row + (col >> p.col_shift);
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
      using kernel = block_cast<in_type, code_type>;
      typename kernel::params k;
      k.x = static_cast<const in_type*>(p.x.data);
      k.out = static_cast<code_type*>(p.out.data);
      k.x_stride = p.x.stride(0);
      k.out_stride = p.out.stride(0);
      k.tiles = tile_grid(p.x.extent(0), p.x.extent(1));
      if (p.given_sf)
        k.given_sf = scale_reader(p.out_sf, false);
      else
        k.out_sf = scale_writer(p.out_sf, numeric::ceil_div(p.x.extent(1), p.block_cols));
      k.flags = p.flags;
      k.clamp = quant::default_clamp(p.codes, false);
      k.row_shift = shift_of(p.block_rows);
      k.col_shift = shift_of(p.block_cols);
      k.x_aligned = loads_aligned<in_type, kernel::values>(p.x);
      k.encodes = p.out.defined();
      k.out_aligned = k.encodes && stores_aligned<code_type, kernel::values>(p.out);
      gpu::launch<kernel>(c, k.tiles.count, 16 * sizeof(std::uint32_t), k);
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
