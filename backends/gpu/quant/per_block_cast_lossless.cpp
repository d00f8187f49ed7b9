#include <portile/kernels/quant/per_block_cast_lossless.hpp>

#include "backends/gpu/quant/run.hpp"
#include "backends/gpu/quant/tile.hpp"

namespace portile::gpu {
namespace {

struct lossless_params {
  const numeric::e2m1x2* x;
  numeric::e4m3* out;
  std::int64_t x_stride, out_stride, rows, cols;
  std::int64_t in_width, out_width;  ///< blocks in a row
  divider in_rows, out_rows;
  int in_shift, out_shift;  ///< log2 of the columns of a block
  scale_reader x_sf;
  scale_writer out_sf;
  std::uint64_t* trap;

  /// Exponent field of the scale of element (r, c).
  PORTILE_DEVICE std::uint32_t exponent(std::int64_t r, std::int64_t c) const {
    return numeric::exponent_field(x_sf(in_rows.quotient(r), c >> in_shift));
  }
  /// Writes the scale of an output block and tells whether it can be exact.
  PORTILE_DEVICE void store_scale(std::int64_t i, std::int64_t j, std::uint32_t largest) const {
    if (largest < 7) raise_trap(trap, 0, i * out_width + j);
    const auto base = static_cast<std::uint8_t>(base_of(largest));
    out_sf(i, j, {numeric::ue8m0_to_float(base), 0, base});
  }
  static PORTILE_DEVICE int base_of(std::uint32_t largest) {
    return largest >= 6 ? static_cast<int>(largest) - 6 : 0;
  }
  /// 2^shift for codes under a scale with this exponent, shift at most 6.
  PORTILE_DEVICE float factor(std::int64_t r, std::int64_t c, std::uint32_t e, int base) const {
    const int shift = static_cast<int>(e) - base;
    if (shift < -5) raise_trap(trap, 1, in_rows.quotient(r) * in_width + (c >> in_shift));
    return shift > -127 ? numeric::ue8m0_to_float(static_cast<std::uint8_t>(shift + 127)) : 0.0f;
  }
};

/// Output blocks whose sides divide 128, at least 16 columns wide, from input blocks at least 16 wide, in
/// aligned rows: a tile a thread block. A thread holds 16 columns of two neighbouring rows.
struct tile_lossless {
  static constexpr int threads = tile::threads;
  [[maybe_unused]] static constexpr int min_blocks = 3;
  struct params : lossless_params {
    tile_grid tiles;
    word_scales sf_words;
    narrow_divider tile_in_rows;
    int row_shift;  ///< log2 of the rows of an output block
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* largest = block.template shared<std::uint32_t>();
    const auto thread = static_cast<unsigned>(block.thread());
    const unsigned per_row = tile::size >> p.out_shift, count = per_row * (tile::size >> p.row_shift);
    const unsigned col = thread % tile::lanes * tile::values, row = thread / tile::lanes * 2;
    std::uint32_t* own[2];
    PORTILE_UNROLL
    for (int i = 0; i < 2; ++i)
      own[i] = largest + ((row + i) >> p.row_shift) * per_row + (col >> p.out_shift);
    for (std::int64_t index = block.index(); index < p.tiles.count; index += block.grid()) {
      const tile_at at = p.tiles.at(index);
      const std::int64_t sf_col = (at.col + col) >> p.in_shift;
      run16<numeric::e2m1x2> v[2];
      std::uint32_t word[2] = {0, 0};
      bool live[2];
      PORTILE_UNROLL
      for (int i = 0; i < 2; ++i) {
        live[i] = at.holds(p.tiles, row + i, col);
        const std::int64_t r = at.row + row + i;
        if (!live[i]) continue;
        v[i].load(p.x + r * p.x_stride + (at.col + col) / 2);
        word[i] = p.sf_words.word(p.tile_in_rows.quotient(static_cast<std::uint32_t>(r)), sf_col);
      }
      for (unsigned k = thread; k < count; k += threads) largest[k] = 0;
      block.barrier();
      std::uint32_t e[2], most[2];
      PORTILE_UNROLL
      for (int i = 0; i < 2; ++i) {
        e[i] = live[i] ? numeric::exponent_field(p.sf_words.value(word[i], sf_col)) : 0u;
        // Lanes of one row first, so that one of them speaks for the block's part of the row.
        most[i] = e[i];
        for (int m = 1; m * tile::values < 1 << p.out_shift; m *= 2)
          most[i] = larger{}(most[i], block.shuffle_xor(most[i], m));
      }
      if (col % (1u << p.out_shift) == 0) {
        if (own[0] == own[1]) {
          block.atomic_max(own[0], larger{}(most[0], most[1]));
        } else {
          block.atomic_max(own[0], most[0]);
          block.atomic_max(own[1], most[1]);
        }
      }
      block.barrier();
      for (unsigned k = thread; k < count; k += threads) {
        const unsigned r = k / per_row, c = k % per_row;
        if (at.holds(p.tiles, r << p.row_shift, c << p.out_shift))
          p.store_scale((at.row >> p.row_shift) + r, (at.col >> p.out_shift) + c, largest[k]);
      }
      PORTILE_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (!live[i]) continue;
        const int base = p.base_of(*own[i]), shift = static_cast<int>(e[i]) - base;
        numeric::e4m3* out = p.out + (at.row + row + i) * p.out_stride + at.col + col;
        if (shift >= -5)
          v[i].look_up(out, e2m1_to_e4m3(shift));
        else
          v[i].encode(out, p.factor(at.row + row + i, at.col + col, e[i], base), true);
      }
      if (index + block.grid() < p.tiles.count) block.barrier();
    }
  }
};

/// Blocks of any size: a wave an output block.
struct general_lossless {
  static constexpr int threads = 256;
  struct params : lossless_params {
    std::int64_t blocks;
    divider across;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * Block::num_waves;
    for (std::int64_t index = block.index() * Block::num_waves + block.wave(); index < p.blocks;
         index += step) {
      const std::int64_t i = p.across.quotient(index), j = index - i * p.across.value();
      const std::int64_t row = i * p.out_rows.value(), col = j << p.out_shift;
      const std::int64_t row_end = row + p.out_rows.value() < p.rows ? row + p.out_rows.value() : p.rows;
      const std::int64_t out_cols = std::int64_t{1} << p.out_shift, in_cols = std::int64_t{1} << p.in_shift;
      const std::int64_t col_end = p.cols - col > out_cols ? col + out_cols : p.cols;

      std::uint32_t most = 0;
      for (std::int64_t r = row; r < row_end; r += p.in_rows.value())
        for (std::int64_t c = col + block.lane() * in_cols; c < col_end; c += Block::wave_size * in_cols)
          most = larger{}(most, p.exponent(r, c));
      most = block.wave_max(most);
      if (block.lane() == 0) p.store_scale(i, j, most);
      const int base = p.base_of(most);
      for (std::int64_t r = row; r < row_end; ++r) {
        const numeric::e2m1x2* x = p.x + r * p.x_stride;
        for (std::int64_t c = col + block.lane(); c < col_end; c += Block::wave_size)
          p.out[r * p.out_stride + c] =
              numeric::to_e4m3(load_value(x, c) * p.factor(r, c, p.exponent(r, c), base));
      }
    }
  }
};

struct per_block_cast_lossless_simt {
  static void launch(const context& c, const quant::per_block_cast_lossless& p) {
    lossless_params k;
    k.x = static_cast<const numeric::e2m1x2*>(p.x.data);
    k.out = static_cast<numeric::e4m3*>(p.out.data);
    k.x_stride = p.x.stride(0);
    k.out_stride = p.out.stride(0);
    k.rows = p.out.extent(0);
    k.cols = p.out.extent(1);
    if (k.rows == 0 || k.cols == 0) return;
    k.in_width = numeric::ceil_div(k.cols, p.x_block_cols);
    k.out_width = numeric::ceil_div(k.cols, p.out_block_cols);
    k.in_rows = divider(p.x_block_rows, k.rows);
    k.out_rows = divider(p.out_block_rows, k.rows);
    k.in_shift = shift_of(p.x_block_cols);
    k.out_shift = shift_of(p.out_block_cols);
    k.x_sf = scale_reader(p.x_sf, p.x_block_cols == 1);
    k.out_sf = scale_writer(p.out_sf, k.out_width);
    k.trap = c.call.trap;

    const tile_grid tiles(k.rows, k.cols);
    const bool aligned = loads_aligned<numeric::e2m1x2, tile::values>(p.x) &&
                         stores_aligned<numeric::e4m3, tile::values>(p.out);
    if (tile::size % p.out_block_rows == 0 && p.out_block_cols <= tile::size &&
        p.x_block_cols >= tile::values && aligned && tiles.fits() && k.rows < narrow_divider::limit) {
      const tile_lossless::params t{k, tiles, word_scales(p.x_sf),
                                    narrow_divider(std::min(p.x_block_rows, k.rows)),
                                    shift_of(p.out_block_rows)};
      const auto blocks = tile::size / p.out_block_rows * (tile::size / p.out_block_cols);
      return gpu::launch<tile_lossless>(c, tiles.count,
                                        static_cast<std::size_t>(blocks) * sizeof(std::uint32_t), t);
    }
    const std::int64_t blocks = numeric::ceil_div(k.rows, p.out_block_rows) * k.out_width;
    gpu::launch<general_lossless>(
        c, numeric::ceil_div(blocks, general_lossless::threads / c.call.device->wave_size), 0,
        {k, blocks, divider(k.out_width, blocks)});
  }
};

}  // namespace

extern const portile_implementation quant_per_block_cast_lossless_simt;
const portile_implementation quant_per_block_cast_lossless_simt =
    make_simt<quant::per_block_cast_lossless, per_block_cast_lossless_simt>();

}  // namespace portile::gpu
