// Rows copied to the rows of their experts: moe.expand_to_fused and moe.expand_to_fused_with_sf.
#include <portile/kernels/moe/expand_to_fused.hpp>
#include <portile/kernels/moe/expand_to_fused_with_sf.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

struct expand_params {
  const unsigned char* x;
  unsigned char* out;
  std::int64_t row_bytes, out_pitch;  ///< x has no gaps
  const std::uint32_t* x_sf;
  std::uint32_t* out_sf;
  std::int64_t sf_cols, sf_row_stride, sf_col_stride;
  const std::int32_t *positions, *owners;
  std::int64_t tokens, k, rows;
  /// Row -> the slot that named it. Never initialised: an entry counts only where that slot names the row.
  std::int64_t* namer;
  std::uint64_t* trap;

  PORTILE_DEVICE bool is_row(std::int64_t pos) const { return pos >= 0 && pos < rows; }
};

template <class Unit>
PORTILE_DEVICE Unit load_unit(const unsigned char* p) {
  if constexpr (sizeof(Unit) == 16)
    return load16(p);
  else
    return *reinterpret_cast<const Unit*>(p);
}
template <class Unit>
PORTILE_DEVICE void store_unit(unsigned char* p, Unit v) {
  if constexpr (sizeof(Unit) == 16)
    store16(p, v);
  else
    *reinterpret_cast<Unit*>(p) = v;
}

/// Leaves the number of each slot with the row that it names.
struct name_rows {
  static constexpr int threads = 256;
  using params = expand_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t slots = p.tokens * p.k;
    for (std::int64_t i = block.index() * threads + block.thread(); i < slots; i += block.grid() * threads) {
      const std::int64_t pos = p.positions[i];
      if (p.is_row(pos)) p.namer[pos] = i;
      if (pos >= p.rows) raise_trap(p.trap, 0, i);
    }
  }
};

/// A wave takes a piece of a token's row, once, to all the rows that the token's slots name. Other waves zero
/// their piece of the rows that no expert owns or no slot names: of as many rows as they have lanes.
template <class Unit>
struct expand_rows {
  static constexpr int threads = 256;
  static constexpr int vectors = 2;  ///< of a lane
  struct params : expand_params {
    std::int64_t row_units, data_pieces;
    std::int64_t zeroing, waves;  ///< the first ones zero
    divider pieces;               ///< of a row, one more where there are scales
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t i = block.index() * Block::num_waves + block.wave(); i < p.waves;
         i += block.grid() * Block::num_waves) {
      if (i < p.zeroing) {
        const std::int64_t group = p.pieces.quotient(i);
        zero(block, p, group * Block::wave_size, i - group * p.pieces.value());
      } else {
        const std::int64_t t = p.pieces.quotient(i - p.zeroing);
        copy(block, p, t, i - p.zeroing - t * p.pieces.value());
      }
    }
  }

 private:
  template <class Block>
  static PORTILE_DEVICE void zero(const Block& block, const params& p, std::int64_t first,
                                  std::int64_t piece) {
    const std::int64_t r = first + block.lane();
    bool live = true;
    if (r < p.rows) {
      const std::int64_t slot = p.namer[r];
      live = p.owners[r] >= 0 && slot >= 0 && slot < p.tokens * p.k && p.positions[slot] == r;
    }
    for (std::uint64_t left = block.ballot(!live); left != 0; left &= left - 1) {
      const std::int64_t row = first + first_lane(left);
      if (piece < p.data_pieces) {
        PORTILE_UNROLL
        for (int v = 0; v < vectors; ++v) {
          const std::int64_t unit = unit_of(block, piece, v);
          if (unit < p.row_units)
            store_unit(p.out + row * p.out_pitch + unit * static_cast<std::int64_t>(sizeof(Unit)), Unit{});
        }
      } else {
        for (std::int64_t c = block.lane(); c < p.sf_cols; c += Block::wave_size)
          p.out_sf[row * p.sf_row_stride + c * p.sf_col_stride] = 0;
      }
    }
  }

  template <class Block>
  static PORTILE_DEVICE void copy(const Block& block, const params& p, std::int64_t t, std::int64_t piece) {
    if (piece == p.data_pieces) {
      for_each_row(block, p, t, [&](std::int64_t row) {
        for (std::int64_t c = block.lane(); c < p.sf_cols; c += Block::wave_size)
          p.out_sf[row * p.sf_row_stride + c * p.sf_col_stride] = p.x_sf[t * p.sf_cols + c];
      });
      return;
    }
    // On their way before the rows are known.
    Unit value[vectors] = {};
    PORTILE_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const std::int64_t unit = unit_of(block, piece, v);
      if (unit < p.row_units)
        value[v] = load_unit<Unit>(p.x + t * p.row_bytes + unit * static_cast<std::int64_t>(sizeof(Unit)));
    }
    for_each_row(block, p, t, [&](std::int64_t row) {
      PORTILE_UNROLL
      for (int v = 0; v < vectors; ++v) {
        const std::int64_t unit = unit_of(block, piece, v);
        if (unit < p.row_units)
          store_unit(p.out + row * p.out_pitch + unit * static_cast<std::int64_t>(sizeof(Unit)), value[v]);
      }
    });
  }
  /// f(row) for the rows of the token's slots that an expert owns, by the whole wave.
  template <class Block, class F>
  static PORTILE_DEVICE void for_each_row(const Block& block, const params& p, std::int64_t t, F f) {
    for (std::int64_t base = 0; base < p.k; base += Block::wave_size) {
      const std::int64_t j = base + block.lane();
      const std::int32_t pos = j < p.k ? p.positions[t * p.k + j] : -1;
      std::uint64_t left = block.ballot(p.is_row(pos) && p.owners[pos] >= 0);
      for (; left != 0; left &= left - 1) f(std::int64_t{block.shuffle(pos, first_lane(left))});
    }
  }
  template <class Block>
  static PORTILE_DEVICE std::int64_t unit_of(const Block& block, std::int64_t piece, int v) {
    return (piece * vectors + v) * Block::wave_size + block.lane();
  }
};

template <class P>
struct expand_simt {
  static std::uint64_t workspace(const portile_device_info&, const P& p) {
    return static_cast<std::uint64_t>(p.out.extent(0)) * sizeof(std::int64_t);
  }

  static void launch(const context& c, const P& p) {
    expand_params q{};
    q.x = static_cast<const unsigned char*>(p.x.data);
    q.out = static_cast<unsigned char*>(p.out.data);
    q.row_bytes = p.x.extent(1) * size_of(p.x.dtype);
    q.out_pitch = p.out.stride(0) * size_of(p.x.dtype);
    if constexpr (requires { p.x_sf; }) {
      q.x_sf = static_cast<const std::uint32_t*>(p.x_sf.data);
      q.out_sf = static_cast<std::uint32_t*>(p.out_sf.data);
      q.sf_cols = p.x_sf.extent(1);
      q.sf_row_stride = p.out_sf.stride(0);
      q.sf_col_stride = p.out_sf.stride(1);
    }
    q.positions = static_cast<const std::int32_t*>(p.token_topk_to_pos.data);
    q.owners = static_cast<const std::int32_t*>(p.pos_to_expert.data);
    q.tokens = p.token_topk_to_pos.extent(0);
    q.k = p.token_topk_to_pos.extent(1);
    q.rows = p.out.extent(0);
    q.namer = static_cast<std::int64_t*>(c.call.workspace);
    q.trap = c.call.trap;

    const std::int64_t element = size_of(p.x.dtype);
    const auto fits = [&](std::int64_t bytes) {
      return q.row_bytes % bytes == 0 && rows_aligned(p.x, bytes) && rows_aligned(p.out, bytes);
    };
    if (fits(16)) return by<words4>(c, q);
    if (element % 4 == 0 || fits(4)) return by<std::uint32_t>(c, q);
    if (element == 2 || fits(2)) return by<std::uint16_t>(c, q);
    by<std::uint8_t>(c, q);
  }

 private:
  template <class Unit>
  static void by(const context& c, const expand_params& q) {
    using kernel = expand_rows<Unit>;
    const std::int64_t wave = c.call.device->wave_size;
    typename kernel::params k{};
    static_cast<expand_params&>(k) = q;
    k.row_units = q.row_bytes / static_cast<std::int64_t>(sizeof(Unit));
    k.data_pieces = numeric::ceil_div(k.row_units, kernel::vectors * wave);
    const std::int64_t pieces = k.data_pieces + (q.sf_cols > 0 ? 1 : 0);
    k.zeroing = numeric::ceil_div(q.rows, wave) * pieces;
    k.waves = k.zeroing + q.tokens * pieces;
    if (pieces > 0) k.pieces = divider(pieces, k.waves);
    gpu::launch<name_rows>(c, numeric::ceil_div(q.tokens * q.k, name_rows::threads), 0, q);
    gpu::launch<kernel>(c, numeric::ceil_div(k.waves, kernel::threads / wave), 0, k);
  }
};

}  // namespace

extern const portile_implementation moe_expand_to_fused_simt, moe_expand_to_fused_with_sf_simt;
const portile_implementation moe_expand_to_fused_simt =
    make_simt<moe::expand_to_fused, expand_simt<moe::expand_to_fused>>();
const portile_implementation moe_expand_to_fused_with_sf_simt =
    make_simt<moe::expand_to_fused_with_sf, expand_simt<moe::expand_to_fused_with_sf>>();

}  // namespace portile::gpu
