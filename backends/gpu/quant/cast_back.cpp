#include <portile/kernels/quant/cast_back.hpp>
#include <portile/kernels/quant/cast_back_e5m6.hpp>
#include <portile/kernels/quant/per_token_cast_back.hpp>

#include "backends/gpu/quant/run.hpp"

namespace portile::gpu {
namespace {

/// `Count` decoded values, 4 or 8, of an aligned row, loaded first and scaled later.
template <class Code, int Count>
struct piece;

template <int Count>
struct piece<numeric::e4m3, Count> {
  std::uint32_t w[Count / 4];

  PORTILE_DEVICE void load(const numeric::e4m3* row, std::int64_t first) {
    if constexpr (Count == 8) {
      const words2 q = load8(row + first);
      w[0] = q.w[0];
      w[1] = q.w[1];
    } else {
      w[0] = load4(row + first);
    }
  }
  template <class Out>
  PORTILE_DEVICE void store(Out* to, float sf) const {
    float v[Count];
    PORTILE_UNROLL
    for (int i = 0; i < Count; i += 2) {
      from_e4m3x2(static_cast<std::uint16_t>(w[i / 4] >> (8 * (i % 4))), v[i], v[i + 1]);
      v[i] *= sf;
      v[i + 1] *= sf;
    }
    store_values<Out, Count>(to, 0, v);
  }
};

template <int Count>
struct piece<numeric::e2m1x2, Count> {
  std::uint32_t w;

  PORTILE_DEVICE void load(const numeric::e2m1x2* row, std::int64_t first) {
    const numeric::e2m1x2* p = row + first / 2;
    if constexpr (Count == 8)
      w = load4(p);
    else
      w = std::uint32_t{p[0].bits} | std::uint32_t{p[1].bits} << 8;
  }
  template <class Out>
  PORTILE_DEVICE void store(Out* to, float sf) const {
    if constexpr (std::is_same_v<Out, numeric::bf16>) {
      if (numeric::is_finite(sf)) {
        const e2m1_to_bf16 values(sf);
        const words2 front = values(w), back = values(w >> 16);
        store16(to, {{front.w[0], front.w[1], back.w[0], back.w[1]}});
        return;
      }
    }
    float v[Count];
    PORTILE_UNROLL
    for (int i = 0; i < Count; ++i) v[i] = from_e2m1(w >> (4 * i) & 15u) * sf;
    store_values<Out, Count>(to, 0, v);
  }
};

/// Eight codes are three words, the first code in the highest bits; a half of them needs two.
template <int Count>
struct piece<numeric::e5m6x8, Count> {
  static constexpr int words = Count == 8 ? 3 : 2;
  std::uint32_t w[words];
  bool back = false;  ///< the second half of eight

  PORTILE_DEVICE void load(const numeric::e5m6x8* row, std::int64_t first) {
    back = first % 8 != 0;
    const numeric::e5m6x8* p = row + first / 8 * 12 + (back ? 4 : 0);
    PORTILE_UNROLL
    for (int k = 0; k < words; ++k) w[k] = load4(p + 4 * k);
  }
  template <class Out>
  PORTILE_DEVICE void store(Out* to, float sf) const {
    std::uint32_t fp16[Count / 2];  // a code is the upper twelve bits of one
    if constexpr (Count == 8) {
      four(w[0], w[1], fp16);
      four(w[1] << 16 | w[2] >> 16, w[2] << 16, fp16 + 2);
    } else {
      const std::uint32_t middle = w[0] << 16 | w[1] >> 16;
      four(back ? middle : w[0], back ? w[1] << 16 : w[1], fp16);
    }
    float v[Count];
    PORTILE_UNROLL
    for (int i = 0; i < Count; i += 2) {
      from_f16x2(fp16[i / 2], v[i], v[i + 1]);
      v[i] *= sf;
      v[i + 1] *= sf;
    }
    store_values<Out, Count>(to, 0, v);
  }

 private:
  /// Four codes in the upper 48 bits.
  static PORTILE_DEVICE void four(std::uint32_t high, std::uint32_t low, std::uint32_t* pairs) {
    const std::uint32_t third = high << 8 | low >> 24;  // bits 15..4 hold the third code
    pairs[0] = (high >> 16 & 0xFFF0u) | (high << 12 & 0xFFF00000u);
    pairs[1] = (third & 0xFFF0u) | (low << 4 & 0xFFF00000u);
  }
};

template <class Code, class Out>
struct decode_params {
  const Code* x;
  Out* out;
  std::int64_t x_stride, out_stride, cols;
};

/// Aligned rows, one scale for what a store of 16 bytes holds. A wave takes 16 values a lane of one row, in
/// stores that leave no gaps between lanes.
template <class Code, class Out>
struct aligned_decode {
  static constexpr int threads = 256;
  static constexpr int values = 16 / static_cast<int>(sizeof(Out)), steps = 16 / values;
  struct params : decode_params<Code, Out> {
    word_scales x_sf;
    narrow_divider row_units, block_rows, block_cols;
    std::int64_t units;  ///< in all
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const auto lane = static_cast<std::uint32_t>(block.lane());
    for (std::int64_t unit = block.index() * Block::num_waves + block.wave(); unit < p.units;
         unit += block.grid() * Block::num_waves) {
      const auto u = static_cast<std::uint32_t>(unit), t = p.row_units.quotient(u);
      const std::uint32_t start = (u - t * p.row_units.value()) * (16 * Block::wave_size) + lane * values;
      const std::uint32_t sf_row = p.block_rows.quotient(t);
      const Code* row = p.x + t * p.x_stride;
      piece<Code, values> x[steps];
      std::uint32_t sf[steps], sf_col[steps];
      PORTILE_UNROLL
      for (int s = 0; s < steps; ++s) {
        const std::uint32_t first = start + s * (values * Block::wave_size);
        sf_col[s] = p.block_cols.quotient(first);
        if (first < p.cols) {
          x[s].load(row, first);
          sf[s] = p.x_sf.word(sf_row, sf_col[s]);
        }
      }
      Out* out = p.out + t * p.out_stride;
      PORTILE_UNROLL
      for (int s = 0; s < steps; ++s) {
        const std::uint32_t first = start + s * (values * Block::wave_size);
        if (first < p.cols) x[s].store(out + first, p.x_sf.value(sf[s], sf_col[s]));
      }
    }
  }
};

/// Everything else.
template <class Code, class Out>
struct any_decode {
  static constexpr int threads = 256, values = 8;
  struct params : decode_params<Code, Out> {
    std::int64_t chunks;
    divider row_chunks, block_rows, block_cols;
    scale_reader x_sf;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t chunk = block.index() * threads + block.thread(); chunk < p.chunks;
         chunk += block.grid() * threads) {
      const std::int64_t t = p.row_chunks.quotient(chunk);
      const std::int64_t first = (chunk - t * p.row_chunks.value()) * values;
      const std::int64_t sf_row = p.block_rows.quotient(t);
      float v[values];
      load_chunk<values>(p.x + t * p.x_stride, first, false, v);
      PORTILE_UNROLL
      for (int i = 0; i < values; ++i)
        store_value(p.out + t * p.out_stride, first + i,
                    v[i] * p.x_sf(sf_row, p.block_cols.quotient(first + i)));
    }
  }
};

void launch_decode(const context& c, const tensor& x, const tensor& x_sf, const tensor& out,
                   std::int64_t block_rows, std::int64_t block_cols) {
  visit<numeric::e4m3, numeric::e2m1x2, numeric::e5m6x8>(x.dtype, [&](auto code) {
    visit<float, numeric::bf16>(out.dtype, [&](auto value) {
      using code_type = decltype(code);
      using out_type = decltype(value);
      const std::int64_t rows = out.extent(0), cols = out.extent(1);
      if (rows == 0 || cols == 0) return;
      const decode_params<code_type, out_type> common{static_cast<const code_type*>(x.data),
                                                      static_cast<out_type*>(out.data), x.stride(0),
                                                      out.stride(0), cols};
      using fast = aligned_decode<code_type, out_type>;
      constexpr std::int64_t load_bytes = std::is_same_v<code_type, numeric::e5m6x8> ? 4
                                          : std::is_same_v<code_type, numeric::e2m1x2>
                                              ? (fast::values == 8 ? 4 : 1)
                                              : fast::values;
      const std::int64_t wave = c.call.device->wave_size;
      const std::int64_t row_units = numeric::ceil_div(cols, 16 * wave), units = rows * row_units;
      const bool one_scale = block_cols % fast::values == 0 || block_cols >= cols;
      if (rows_aligned(x, load_bytes) && rows_aligned(out, 16) && one_scale &&
          word_scales::suits(x_sf, block_cols == 1) && units < narrow_divider::limit &&
          row_units * 16 * wave < narrow_divider::limit) {
        return gpu::launch<fast>(
            c, numeric::ceil_div(units, fast::threads / wave), 0,
            {common, word_scales(x_sf), narrow_divider(row_units), narrow_divider(std::min(block_rows, rows)),
             narrow_divider(std::min(block_cols, cols)), units});
      }
      using any = any_decode<code_type, out_type>;
      const std::int64_t row_chunks = cols / any::values, chunks = rows * row_chunks;
      gpu::launch<any>(c, numeric::ceil_div(chunks, any::threads), 0,
                       {common, chunks, divider(row_chunks, chunks), divider(block_rows, rows),
                        divider(block_cols, cols), scale_reader(x_sf, block_cols == 1)});
    });
  });
}

struct cast_back_simt {
  static void launch(const context& c, const quant::cast_back& p) {
    launch_decode(c, p.x, p.x_sf, p.out, p.x_block_rows, p.x_block_cols);
  }
};
struct per_token_cast_back_simt {
  static void launch(const context& c, const quant::per_token_cast_back& p) {
    launch_decode(c, p.x, p.x_sf, p.out, 1, p.num_per_channels);
  }
};
struct cast_back_e5m6_simt {
  static void launch(const context& c, const quant::cast_back_e5m6& p) {
    launch_decode(c, p.x, p.x_sf, p.out, p.x_block_rows, p.x_block_cols);
  }
};

}  // namespace

extern const portile_implementation quant_cast_back_simt, quant_per_token_cast_back_simt,
    quant_cast_back_e5m6_simt;
const portile_implementation quant_cast_back_simt = make_simt<quant::cast_back, cast_back_simt>();
const portile_implementation quant_per_token_cast_back_simt =
    make_simt<quant::per_token_cast_back, per_token_cast_back_simt>();
const portile_implementation quant_cast_back_e5m6_simt =
    make_simt<quant::cast_back_e5m6, cast_back_e5m6_simt>();

}  // namespace portile::gpu
