#include <portile/kernels/quant/per_token_cast.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

template <class In, class Code>
struct cast_params {
  const In* x;
  Code* out;
  std::int64_t x_stride, out_stride;  ///< of rows, in stored elements
  std::int64_t rows, hidden, group;
  divider block_rows, block_cols;  ///< of x_sf
  scale_reader x_sf;
  scale_writer out_sf;
  quant::scale_flags flags;
  float clamp;

  static constexpr float max_q() { return quant::max_code(dtype_of<Code>); }
};

/// Groups of 16 to 128 channels in aligned rows. A thread holds 16 consecutive values, 1 to 8 lanes a group.
template <class In, class Code>
struct aligned_cast {
  static constexpr int threads = 512, values = 16;
  struct params : cast_params<In, Code> {
    divider row_chunks;   ///< chunks of 16 values in a row, the last group's missing ones counted
    std::int64_t chunks;  ///< in all
    int lanes;            ///< of a group, a power of two
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t base = block.index() * threads; base < p.chunks; base += block.grid() * threads) {
      const std::int64_t chunk = base + block.thread();
      const std::int64_t t = p.row_chunks.quotient(chunk);
      const std::int64_t first = (chunk - t * p.row_chunks.value()) * values;
      const bool live = chunk < p.chunks && first < p.hidden;

      float v[values];
      float x_sf = 1.0f, amax = 0.0f;
      if (live) {
        load_values<In, values>(p.x + t * p.x_stride, first, v);
        if constexpr (sizeof(In) == 1) x_sf = p.x_sf(p.block_rows.quotient(t), p.block_cols.quotient(first));
        PORTILE_UNROLL
        for (int i = 0; i < values; ++i) amax = numeric::amax_step(amax, v[i] * x_sf);
      }
      for (int m = 1; m < p.lanes; m *= 2) {
        const float other = block.shuffle_xor(amax, m);
        amax = other > amax ? other : amax;
      }
      if (!live) continue;
      const numeric::scale s = make_scale(amax, p.clamp, p.max_q(), p.flags);
      const float factor = x_sf * s.sf_inv;
      PORTILE_UNROLL
      for (int i = 0; i < values; ++i) v[i] *= factor;
      store_codes16(p.out + t * p.out_stride, first, v);
      if (first % p.group == 0) p.out_sf(t, first / p.group, s);
    }
  }
};

/// Everything else: a wave a group; a lane writes four values a step, or the eight that E5M6 packs together.
template <class In, class Code>
struct general_cast {
  static constexpr int threads = 256;
  static constexpr bool e5m6 = std::is_same_v<Code, numeric::e5m6x8>;
  static constexpr int unit = e5m6 ? 8 : 4;
  struct params : cast_params<In, Code> {
    divider row_groups;
    std::int64_t groups;  ///< in all
    bool stochastic;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * Block::num_waves;
    for (std::int64_t g = block.index() * Block::num_waves + block.wave(); g < p.groups; g += step) {
      const std::int64_t t = p.row_groups.quotient(g);
      const std::int64_t column = g - t * p.row_groups.value();
      const std::int64_t first = column * p.group;
      const std::int64_t end = first + p.group < p.hidden ? first + p.group : p.hidden;
      const In* row = p.x + t * p.x_stride;
      const std::int64_t sf_row = p.block_rows.quotient(t);

      float amax = 0.0f;
      for (std::int64_t j = first + block.lane(); j < end; j += Block::wave_size)
        amax = numeric::amax_step(amax, load_value(row, j) * p.x_sf(sf_row, p.block_cols.quotient(j)));
      for (int m = 1; m < Block::wave_size; m *= 2) {
        const float other = block.shuffle_xor(amax, m);
        amax = other > amax ? other : amax;
      }
      const numeric::scale s = make_scale(amax, p.clamp, p.max_q(), p.flags);
      if (block.lane() == 0) p.out_sf(t, column, s);

      for (std::int64_t j = first + unit * block.lane(); j < end; j += unit * Block::wave_size) {
        float v[unit];
        PORTILE_UNROLL
        for (int i = 0; i < unit; ++i)
          v[i] = load_value(row, j + i) * (p.x_sf(sf_row, p.block_cols.quotient(j + i)) * s.sf_inv);
        encode(v, p.out + t * p.out_stride, j, p.stochastic);
      }
    }
  }

  static PORTILE_DEVICE void encode(const float (&v)[unit], Code* row, std::int64_t j, bool stochastic) {
    if constexpr (e5m6) {
      std::uint16_t codes[8];
      PORTILE_UNROLL
      for (int i = 0; i < 8; ++i) codes[i] = numeric::to_e5m6(v[i]);
      std::uint8_t bytes[12];
      numeric::pack_e5m6x8(codes, bytes);
      PORTILE_UNROLL
      for (int i = 0; i < 12; ++i) row[j / 8 * 12 + i] = {bytes[i]};
    } else {
      using numeric::float_bits;
      std::uint32_t r0 = 0;
      if (stochastic)
        r0 = numeric::sr_hash(float_bits(v[0]), float_bits(v[1]), float_bits(v[2]), float_bits(v[3]),
                              static_cast<std::uint32_t>(j / 4))
                 .r0;
      if constexpr (std::is_same_v<Code, numeric::e4m3>) {
        PORTILE_UNROLL
        for (int i = 0; i < 4; ++i)
          row[j + i] = stochastic ? numeric::stochastic_e4m3(v[i], numeric::sr_slice_e4m3(r0, i))
                                  : numeric::to_e4m3(v[i]);
      } else {
        std::uint32_t code[4];
        PORTILE_UNROLL
        for (int i = 0; i < 4; ++i)
          code[i] =
              stochastic ? numeric::stochastic_e2m1(v[i], numeric::sr_slice_e2m1(r0, i)) : to_e2m1_code(v[i]);
        PORTILE_UNROLL
        for (int i = 0; i < 4; i += 2)
          row[(j + i) / 2] = {static_cast<std::uint8_t>(code[i] | code[i + 1] << 4)};
      }
    }
  }
};

struct per_token_cast_simt {
  static void launch(const context& c, const quant::per_token_cast& p) {
    visit<float, numeric::bf16, numeric::e4m3, numeric::e2m1x2>(p.x.dtype, [&](auto in) {
      visit<numeric::e4m3, numeric::e2m1x2, numeric::e5m6x8>(
          p.out.dtype, [&](auto code) { typed<decltype(in), decltype(code)>(c, p); });
    });
  }

 private:
  template <class In, class Code>
  static void typed(const context& c, const quant::per_token_cast& p) {
    cast_params<In, Code> common;
    common.x = static_cast<const In*>(p.x.data);
    common.out = static_cast<Code*>(p.out.data);
    common.x_stride = p.x.stride(0);
    common.out_stride = p.out.stride(0);
    common.rows = p.out.extent(0);
    common.hidden = value_extent(p.out.dtype, p.out.extent(1));
    common.group = p.num_per_channels;
    if (common.rows == 0 || common.hidden == 0) return;
    const std::int64_t groups = numeric::ceil_div(common.hidden, common.group);
    if (p.x_sf) {
      common.block_rows = divider(p.x_block_rows, common.rows);
      common.block_cols = divider(p.x_block_cols, common.hidden);
      common.x_sf = scale_reader(p.x_sf, p.x_block_cols == 1);
    }
    common.out_sf = scale_writer(p.out_sf, groups);
    common.flags = quant::flags_of(p);
    common.clamp = quant::default_clamp(p.out.dtype, p.use_e4m3_sf);

    if constexpr (!std::is_same_v<Code, numeric::e5m6x8>) {
      using fast = aligned_cast<In, Code>;
      const bool aligned = rows_aligned(p.x, load_alignment<In, fast::values>()) &&
                           rows_aligned(p.out, load_alignment<Code, fast::values>());
      const bool one_scale_each = !p.x_sf || p.x_block_cols % fast::values == 0;
      const bool small_group =
          common.group <= 128 && 128 % common.group == 0 && common.group % fast::values == 0;
      if (aligned && one_scale_each && small_group && !p.stochastic_rounding) {
        typename fast::params f{common, {}, 0, static_cast<int>(common.group / fast::values)};
        const std::int64_t in_row = groups * f.lanes;
        f.chunks = common.rows * in_row;
        f.row_chunks = divider(in_row, f.chunks + fast::threads);
        return gpu::launch<fast>(c, numeric::ceil_div(f.chunks, fast::threads), 0, f);
      }
    }
    // E5M6 is for plain values only.
    if constexpr (sizeof(In) > 1 || !std::is_same_v<Code, numeric::e5m6x8>) {
      using general = general_cast<In, Code>;
      const typename general::params g{common, divider(groups, common.rows * groups), common.rows * groups,
                                       p.stochastic_rounding};
      gpu::launch<general>(c, numeric::ceil_div(g.groups, general::threads / c.call.device->wave_size), 0, g);
    }
  }
};

}  // namespace

extern const portile_implementation quant_per_token_cast_simt;
const portile_implementation quant_per_token_cast_simt =
    make_simt<quant::per_token_cast, per_token_cast_simt>();

}  // namespace portile::gpu
