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

/// Each value is read once and written to all the rows that the token's slots name.
template <class Unit>
struct scatter_rows {
  static constexpr int threads = 256;
  struct params : expand_params {
    std::int64_t row_units, units;  ///< of a row, the scales too; in all
    divider of_row;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t i = block.index() * threads + block.thread(); i < p.units;
         i += block.grid() * threads) {
      const std::int64_t t = p.of_row.quotient(i), unit = i - t * p.of_row.value();
      const std::int32_t* positions = p.positions + t * p.k;
      if (unit < p.row_units) {
        const std::int64_t at = unit * static_cast<std::int64_t>(sizeof(Unit));
        const Unit v = load_unit<Unit>(p.x + t * p.row_bytes + at);
        for_each_row(p, positions, [&](std::int64_t pos) { store_unit(p.out + pos * p.out_pitch + at, v); });
      } else if (unit - p.row_units < p.sf_cols) {
        const std::int64_t c = unit - p.row_units;
        const std::uint32_t v = p.x_sf[t * p.sf_cols + c];
        for_each_row(p, positions,
                     [&](std::int64_t pos) { p.out_sf[pos * p.sf_row_stride + c * p.sf_col_stride] = v; });
      }
      if (unit > 0) continue;
      for (std::int64_t j = 0; j < p.k; ++j) {
        if (p.is_row(positions[j])) p.namer[positions[j]] = t * p.k + j;
        if (positions[j] >= p.rows) raise_trap(p.trap, 0, t * p.k + j);
      }
    }
  }

 private:
  template <class F>
  static PORTILE_DEVICE void for_each_row(const params& p, const std::int32_t* positions, F f) {
    constexpr int batch = 4;
    for (std::int64_t j = 0; j < p.k; j += batch) {
      std::int32_t pos[batch];
      PORTILE_UNROLL
      for (int u = 0; u < batch; ++u) pos[u] = j + u < p.k ? positions[j + u] : -1;
      PORTILE_UNROLL
      for (int u = 0; u < batch; ++u)
        if (p.is_row(pos[u])) f(std::int64_t{pos[u]});
    }
  }
};

/// Zeroes the rows that no expert owns or no slot names, once all slots have left their number: a wave a row.
template <class Unit>
struct zero_rows {
  static constexpr int threads = 256;
  struct params : expand_params {
    std::int64_t row_units;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * Block::num_waves;
    for (std::int64_t r = block.index() * Block::num_waves + block.wave(); r < p.rows; r += step) {
      const std::int32_t owner = p.owners[r];
      const std::int64_t slot = p.namer[r];
      const bool named = slot >= 0 && slot < p.tokens * p.k && p.positions[slot] == r;
      if (owner >= 0 && named) continue;
      for (std::int64_t u = block.lane(); u < p.row_units; u += Block::wave_size)
        store_unit(p.out + r * p.out_pitch + u * static_cast<std::int64_t>(sizeof(Unit)), Unit{});
      for (std::int64_t c = block.lane(); c < p.sf_cols; c += Block::wave_size)
        p.out_sf[r * p.sf_row_stride + c * p.sf_col_stride] = 0;
    }
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
    using scatter = scatter_rows<Unit>;
    using zero = zero_rows<Unit>;
    const std::int64_t row_units = q.row_bytes / static_cast<std::int64_t>(sizeof(Unit));
    // A row without values still has its slots looked at.
    const std::int64_t of_row = std::max<std::int64_t>(1, row_units + q.sf_cols), units = q.tokens * of_row;
    gpu::launch<scatter>(c, numeric::ceil_div(units, scatter::threads), 0,
                         {q, row_units, units, divider(of_row, units)});
    gpu::launch<zero>(c, numeric::ceil_div(q.rows, zero::threads / c.call.device->wave_size), 0,
                      {q, row_units});
  }
};

}  // namespace

extern const portile_implementation moe_expand_to_fused_simt, moe_expand_to_fused_with_sf_simt;
const portile_implementation moe_expand_to_fused_simt =
    make_simt<moe::expand_to_fused, expand_simt<moe::expand_to_fused>>();
const portile_implementation moe_expand_to_fused_with_sf_simt =
    make_simt<moe::expand_to_fused_with_sf, expand_simt<moe::expand_to_fused_with_sf>>();

}  // namespace portile::gpu
