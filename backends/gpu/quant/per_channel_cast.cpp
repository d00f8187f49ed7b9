#include <portile/kernels/quant/per_channel_cast.hpp>
#include <portile/kernels/quant/per_channel_cast_and_transpose.hpp>
#include <portile/kernels/quant/per_channel_cast_fused.hpp>
#include <portile/kernels/quant/swiglu_forward_and_per_channel_cast_and_transpose.hpp>

#include "backends/gpu/quant/swiglu.hpp"
#include "backends/gpu/quant/tile.hpp"

namespace portile::gpu {
namespace {

/// Rows of x as they are, or gathered; codes with their scales.
template <class In>
struct rows_source {
  const In* x;
  std::int64_t stride, tokens;
  const std::int32_t* pos;  ///< row of x for each row; absent: the same
  scale_reader x_sf;
  int group_shift;  ///< log2 of the channels of a scale
  bool aligned;
  std::uint64_t* trap;

  PORTILE_DEVICE void load(std::int64_t row, std::int64_t col, float* v) const {
    const std::int64_t t = pos ? pos[row] : row;
    if (t < 0 || t >= tokens) {
      if (t >= tokens && col == 0) raise_trap(trap, 0, row);
      PORTILE_UNROLL
      for (int k = 0; k < tile::values; ++k) v[k] = 0.0f;
      return;
    }
    load_chunk<tile::values>(x + t * stride, col, aligned, v);
    if constexpr (sizeof(In) == 1) {
      const float sf = x_sf(t, col >> group_shift);
      PORTILE_UNROLL
      for (int k = 0; k < tile::values; ++k) v[k] *= sf;
    }
  }
};

/// Activations of x = [left | right], rounded to bf16.
template <class In>
struct swiglu_source {
  const In* x;
  std::int64_t stride, hidden;
  swiglu_clamp clamp;
  bool aligned;

  PORTILE_DEVICE void load(std::int64_t row, std::int64_t col, float* v) const {
    float right[tile::values];
    load_chunk<tile::values>(x + row * stride, col, aligned, v);
    load_chunk<tile::values>(x + row * stride, hidden + col, aligned, right);
    PORTILE_UNROLL
    for (int k = 0; k < tile::values; k += 2) {
      const std::uint32_t pair =
          to_bf16x2(clamp.activation(v[k], right[k]), clamp.activation(v[k + 1], right[k + 1]));
      v[k] = bf16_low(pair);
      v[k + 1] = bf16_high(pair);
    }
  }
};

/// A tile of 128 x 128 values a thread block: amax of each column over 32 or 128 rows, then the codes, stored
/// as they lie or transposed through shared memory.
template <class Source>
struct channel_cast {
  static constexpr int threads = tile::threads, values = tile::values, size = tile::size;
  struct params {
    Source source;
    numeric::e4m3* out;
    std::int64_t out_stride;
    tile_grid tiles;
    void* out_sf;
    std::int64_t sf_stride;
    int row_shift;  ///< log2 of the rows of a scale
    bool round, packed, transposed, out_aligned;
  };
  // amax, then 1 / scale, of at most four blocks of each column; behind it the codes of the tile.
  static constexpr std::size_t sf_bytes = 4 * size * sizeof(float);
  static constexpr std::size_t shared_bytes(bool transposed) {
    return sf_bytes + (transposed ? size * size : 0);
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* amax_bits = block.template shared<std::uint32_t>();
    const int col = tile::column(block.thread());
    const int blocks = size >> p.row_shift;
    for (std::int64_t index = block.index(); index < p.tiles.count; index += block.grid()) {
      const tile_at at = p.tiles.at(index);
      float v[tile::passes][values];
      PORTILE_UNROLL
      for (int i = 0; i < tile::passes; ++i) {
        const int row = tile::row(block.thread(), i);
        if (at.holds(p.tiles, row, col)) {
          p.source.load(at.row + row, at.col + col, v[i]);
        } else {
          PORTILE_UNROLL
          for (int k = 0; k < values; ++k) v[i][k] = 0.0f;
        }
      }
      for (int k = block.thread(); k < blocks * size; k += threads) amax_bits[k] = 0;
      block.barrier();
      column_amax(block, p, v, amax_bits);
      block.barrier();
      for (int k = block.thread(); k < blocks * size; k += threads) {
        const numeric::scale s = scale_of(amax_bits[k], p.round);
        const int b = k / size, c = k % size;
        if (at.holds(p.tiles, b << p.row_shift, c)) store_scale(p, at, b, c, s);
        amax_bits[k] = numeric::float_bits(s.sf_inv);
      }
      block.barrier();

      auto* codes = p.transposed ? block.template shared<unsigned char>(sf_bytes) : nullptr;
      PORTILE_UNROLL
      for (int i = 0; i < tile::passes; ++i) {
        const int row = tile::row(block.thread(), i);
        const std::uint32_t* sf_inv = amax_bits + (row >> p.row_shift) * size + col;
        PORTILE_UNROLL
        for (int k = 0; k < values; k += 4) {
          const words4 four = load16(sf_inv + k);
          PORTILE_UNROLL
          for (int j = 0; j < 4; ++j) v[i][k + j] *= numeric::bits_float(four.w[j]);
        }
        if (p.transposed)
          store_codes16(reinterpret_cast<numeric::e4m3*>(codes + shared_chunk(row, col / values)), 0, v[i]);
        else if (at.holds(p.tiles, row, col))
          store_chunk<values>(p.out + (at.row + row) * p.out_stride, at.col + col, p.out_aligned, v[i]);
      }
      if (p.transposed) {
        block.barrier();
        store_transposed(block, p, at, codes);
      }
      block.barrier();
    }
  }

 private:
  static PORTILE_DEVICE numeric::scale scale_of(std::uint32_t bits, bool round) {
    const quant::scale_flags flags{.round = round};
    return make_scale(numeric::bits_float(bits), numeric::clamp_e4m3, numeric::max_e4m3, flags);
  }
  static PORTILE_DEVICE void store_scale(const params& p, const tile_at& at, int b, int c,
                                         const numeric::scale& s) {
    const std::int64_t i = (at.row >> p.row_shift) + b, j = at.col + c;
    if (!p.packed) {
      static_cast<float*>(p.out_sf)[i * p.sf_stride + j] = s.sf;
      return;
    }
    auto* bytes =
        reinterpret_cast<std::uint8_t*>(static_cast<numeric::ue8m0x4*>(p.out_sf) + i / 4 * p.sf_stride + j);
    bytes[i % 4] = s.exponent;
    if (((i + 1) << p.row_shift) >= p.tiles.rows)
      for (std::int64_t k = i % 4 + 1; k < 4; ++k) bytes[k] = 0;
  }

  /// Exchanges with the other rows of a wave, each of which halves the columns that a lane speaks for.
  template <int Half, class Block>
  static PORTILE_DEVICE void halve(const Block& block, float* a, int& first) {
    constexpr int m = tile::lanes * (values / 2 / Half);
    if constexpr (m < Block::wave_size) {
      const bool upper = (block.lane() & m) != 0;
      PORTILE_UNROLL
      for (int k = 0; k < Half; ++k) {
        const float kept = upper ? a[k + Half] : a[k], given = upper ? a[k] : a[k + Half];
        a[k] = max_number(kept, block.shuffle_xor(given, m));
      }
      if (upper) first += Half;
      halve<Half / 2>(block, a, first);
    }
  }
  template <class Block>
  static PORTILE_DEVICE void column_amax(const Block& block, const params& p, const float (&v)[2][values],
                                         std::uint32_t* amax_bits) {
    constexpr int left = values * tile::lanes / Block::wave_size;
    PORTILE_UNROLL
    for (int i = 0; i < tile::passes; ++i) {
      float a[values];
      PORTILE_UNROLL
      for (int k = 0; k < values; ++k) a[k] = amax_step(0.0f, v[i][k]);
      int first = tile::column(block.thread());
      halve<values / 2>(block, a, first);
      const int row = tile::row(block.thread(), i);
      PORTILE_UNROLL
      for (int k = 0; k < left; ++k)
        block.atomic_max(amax_bits + (row >> p.row_shift) * size + first + k, numeric::float_bits(a[k]));
    }
  }

  /// Offset of 16 codes of a row. Chunks are permuted by the row's sixteenth, so that the reads of
  /// store_transposed, 16 rows apart, fall on different banks.
  static PORTILE_DEVICE int shared_chunk(int row, int chunk) {
    return row * size + (chunk ^ (row / 16 & 7)) * values;
  }
  /// A thread takes two columns of 16 rows; eight lanes write a column's 128 bytes.
  template <class Block>
  static PORTILE_DEVICE void store_transposed(const Block& block, const params& p, const tile_at& at,
                                              const unsigned char* codes) {
    const int row = block.thread() % 8 * 16, col = block.thread() / 8 * 2;
    if (!at.holds(p.tiles, row, col)) return;
    words4 even{}, odd{};
    PORTILE_UNROLL
    for (int k = 0; k < 16; ++k) {
      const std::uint32_t pair =
          *reinterpret_cast<const std::uint16_t*>(codes + shared_chunk(row + k, col / values) + col % values);
      even.w[k / 4] |= (pair & 0xFFu) << (8 * (k % 4));
      odd.w[k / 4] |= (pair >> 8) << (8 * (k % 4));
    }
    numeric::e4m3* to = p.out + (at.col + col) * p.out_stride + at.row + row;
    store_column(p, to, even);
    store_column(p, to + p.out_stride, odd);
  }
  static PORTILE_DEVICE void store_column(const params& p, numeric::e4m3* to, words4 w) {
    if (p.out_aligned) {
      store16(to, w);
      return;
    }
    PORTILE_UNROLL
    for (int k = 0; k < 16; ++k) to[k] = {static_cast<std::uint8_t>(w.w[k / 4] >> (8 * (k % 4)))};
  }
};

/// `p`: what the operations have in common.
template <class Source, class P>
void launch_cast(const context& c, const P& p, const Source& source, std::int64_t rows, std::int64_t cols,
                 bool transposed) {
  using kernel = channel_cast<Source>;
  const quant::scale_flags flags = quant::flags_of(p);
  typename kernel::params k;
  k.source = source;
  k.out = static_cast<numeric::e4m3*>(p.out.data);
  k.out_stride = p.out.stride(0);
  k.tiles = tile_grid(rows, cols);
  k.out_sf = p.out_sf.data;
  k.sf_stride = p.out_sf.stride(0);
  k.row_shift = shift_of(p.num_per_tokens);
  k.round = flags.round;
  k.packed = flags.packed;
  k.transposed = transposed;
  k.out_aligned = stores_aligned<numeric::e4m3, kernel::values>(p.out);
  gpu::launch<kernel>(c, k.tiles.count, kernel::shared_bytes(transposed), k);
}

template <class P>
void launch_rows(const context& c, const P& p, std::int64_t rows, const std::int32_t* pos, bool transposed) {
  scale_reader x_sf;
  int group_shift = 0;
  if constexpr (requires { p.x_sf; })
    if (p.x_sf) {
      x_sf = scale_reader(p.x_sf, false);
      group_shift = shift_of(*p.num_per_channels);
    }
  visit<float, numeric::bf16, numeric::e4m3>(p.x.dtype, [&](auto in) {
    using in_type = decltype(in);
    rows_source<in_type> s{};
    s.x = static_cast<const in_type*>(p.x.data);
    s.stride = p.x.stride(0);
    s.tokens = p.x.extent(0);
    s.pos = pos;
    s.x_sf = x_sf;
    s.group_shift = group_shift;
    s.aligned = loads_aligned<in_type, tile::values>(p.x);
    s.trap = c.call.trap;
    launch_cast(c, p, s, rows, p.x.extent(1), transposed);
  });
}

struct per_channel_cast_simt {
  static void launch(const context& c, const quant::per_channel_cast& p) {
    launch_rows(c, p, p.x.extent(0), nullptr, false);
  }
};
struct per_channel_cast_and_transpose_simt {
  static void launch(const context& c, const quant::per_channel_cast_and_transpose& p) {
    launch_rows(c, p, p.x.extent(0), nullptr, true);
  }
};
struct per_channel_cast_fused_simt {
  static void launch(const context& c, const quant::per_channel_cast_fused& p) {
    const auto* pos = p.pos_to_token ? static_cast<const std::int32_t*>(p.pos_to_token.data) : nullptr;
    launch_rows(c, p, p.out.extent(0), pos, false);
  }
};
struct swiglu_forward_and_per_channel_cast_and_transpose_simt {
  static void launch(const context& c, const quant::swiglu_forward_and_per_channel_cast_and_transpose& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
      using in_type = decltype(in);
      const std::int64_t hidden = p.out_sf.extent(1);
      const swiglu_source<in_type> s{static_cast<const in_type*>(p.x.data), p.x.stride(0), hidden,
                                     swiglu_clamp(p.clamp_value), loads_aligned<in_type, tile::values>(p.x)};
      launch_cast(c, p, s, p.x.extent(0), hidden, !p.without_transpose);
    });
  }
};

}  // namespace

extern const portile_implementation quant_per_channel_cast_simt, quant_per_channel_cast_and_transpose_simt,
    quant_per_channel_cast_fused_simt, quant_swiglu_forward_and_per_channel_cast_and_transpose_simt;
const portile_implementation quant_per_channel_cast_simt =
    make_simt<quant::per_channel_cast, per_channel_cast_simt>();
const portile_implementation quant_per_channel_cast_and_transpose_simt =
    make_simt<quant::per_channel_cast_and_transpose, per_channel_cast_and_transpose_simt>();
const portile_implementation quant_per_channel_cast_fused_simt =
    make_simt<quant::per_channel_cast_fused, per_channel_cast_fused_simt>();
const portile_implementation quant_swiglu_forward_and_per_channel_cast_and_transpose_simt =
    make_simt<quant::swiglu_forward_and_per_channel_cast_and_transpose,
              swiglu_forward_and_per_channel_cast_and_transpose_simt>();

}  // namespace portile::gpu
