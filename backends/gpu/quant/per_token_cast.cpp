#include <portile/kernels/quant/per_token_cast.hpp>
#include <portile/kernels/quant/per_token_cast_to_e5m6.hpp>
#include <portile/kernels/quant/per_token_cast_with_precomputed_sf.hpp>
#include <portile/kernels/quant/per_token_cast_with_sf_only.hpp>

#include "backends/gpu/quant/near_rows.hpp"
#include "backends/gpu/quant/run.hpp"
#include "backends/gpu/reduce.hpp"

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
  scale_reader given_sf;  ///< present: the scales are inputs
  quant::scale_flags flags;
  float clamp;
  bool encodes;  ///< else the scales alone are asked for

  PORTILE_DEVICE bool given() const { return given_sf.data != nullptr; }
  static constexpr float max_q() { return quant::max_code(dtype_of<Code>); }
};

/// Groups of 16 to 128 channels in aligned rows. A thread holds 16 consecutive values, 1 to 8 lanes a group.
template <class In, class Code>
struct aligned_cast {
  static constexpr int threads = 512, values = 16, min_blocks = 3;
  struct params : cast_params<In, Code> {
    byte_rows x_rows, out_rows;
    scale_table x_scales, scales;     ///< where they are plain ones
    narrow_divider row_chunks;        ///< chunks of 16 values in a row, the last group's missing ones counted
    narrow_divider in_rows, in_cols;  ///< of a block of x_sf
    std::uint32_t chunks, columns;    ///< in all; of x
    int lanes;                        ///< of a group, a power of two
    int group_shift;                  ///< log2 of the group
    bool plain_x_sf, plain_sf;        ///< fp32, or packed along the columns
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const auto step = static_cast<std::uint32_t>(block.grid()) * threads;
    for (std::uint32_t base = static_cast<std::uint32_t>(block.index()) * threads; base < p.chunks;
         base += step) {
      const std::uint32_t chunk = base + static_cast<std::uint32_t>(block.thread());
      const std::uint32_t t = p.row_chunks.quotient(chunk);
      const std::uint32_t first = (chunk - t * p.row_chunks.value()) * values;
      const bool live = chunk < p.chunks && first < p.columns;

      run16<In> v;
      float x_sf = 1.0f;
      if (live) {
        v.load(p.x_rows.template row<const In>(t) + offset<In>(first));
        if constexpr (sizeof(In) == 1) x_sf = scale_of_x(p, p.in_rows.quotient(t), p.in_cols.quotient(first));
      }
      float amax = v.amax();
      if constexpr (sizeof(In) == 1) amax = amax_step(0.0f, amax * x_sf);
      if (p.lanes > 1) amax = max_number(amax, block.shuffle_xor(amax, 1));
      if (p.lanes > 2) amax = max_number(amax, block.shuffle_xor(amax, 2));
      if (p.lanes > 4) amax = max_number(amax, block.shuffle_xor(amax, 4));
      if (!live) continue;
      const std::uint32_t column = first >> p.group_shift;
      numeric::scale s{};
      if (p.given()) {
        s.sf_inv = 1.0f / p.given_sf(t, column);
      } else {
        s = make_scale(amax, p.clamp, p.max_q(), p.flags);
      }
      if (p.encodes) {
        Code* out = p.out_rows.template row<Code>(t) + offset<Code>(first);
        if constexpr (sizeof(In) == 1)
          v.encode(out, x_sf * s.sf_inv, false);
        else
          v.encode(out, s.sf_inv, p.flags.round && !p.given());
      }
      if (column << p.group_shift != first || p.given()) continue;
      if (p.plain_sf)
        p.scales.store(t, column, s);
      else
        p.out_sf(t, column, s);
    }
  }

 private:
  template <class T>
  static PORTILE_DEVICE std::uint32_t offset(std::uint32_t col) {
    return std::is_same_v<T, numeric::e2m1x2> ? col / 2 : col;
  }
  static PORTILE_DEVICE float scale_of_x(const params& p, std::uint32_t i, std::uint32_t j) {
    return p.plain_x_sf ? p.x_scales.scale(p.x_scales.load(i, j), j) : p.x_sf(i, j);
  }
};

/// One scale for an aligned row of plain values: a block a row, and the first 16 values of a thread stay in
/// registers.
template <class In, class Code>
struct row_cast {
  static constexpr int threads = 512, values = 16, min_blocks = sizeof(In) == 4 ? 2 : 3;
  static constexpr bool e5m6 = std::is_same_v<Code, numeric::e5m6x8>;
  struct params : cast_params<In, Code> {};

  // Partial results of the reduction, then the codes on their way to memory.
  static constexpr std::size_t scratch_bytes = threads / 32 * sizeof(float);
  static constexpr std::size_t shared_bytes = scratch_bytes + (e5m6 ? threads * 24 : 0);

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    float* scratch = block.template shared<float>();
    const std::int64_t first = block.thread() * values;
    constexpr std::int64_t step = threads * values;
    for (std::int64_t t = block.index(); t < p.rows; t += block.grid()) {
      const In* row = p.x + t * p.x_stride;
      run16<In> v;
      if (first < p.hidden) v.load(row + first);
      float amax = v.amax();
      PORTILE_NO_UNROLL
      for (std::int64_t j = first + step; j < p.hidden; j += step) {
        run16<In> more;
        more.load(row + j);
        amax = larger{}(amax, more.amax());
      }
      amax = block_max(block, amax, scratch);
      const numeric::scale s = make_scale(amax, p.clamp, p.max_q(), p.flags);
      if (block.thread() == 0) p.out_sf(t, 0, s);
      PORTILE_NO_UNROLL
      for (std::int64_t base = 0; base < p.hidden; base += step) {
        const std::int64_t j = base + first;
        if (base > 0 && j < p.hidden) {
          v.load(row + j);
          (void)v.amax();
        }
        Code* out = p.out + t * p.out_stride;
        if constexpr (e5m6)
          store_e5m6(block, v, s.sf_inv, p.flags.round, out, j - block.lane() * values, p.hidden);
        else if (j < p.hidden)
          v.encode(out + code_offset<Code>(j), s.sf_inv, p.flags.round);
      }
      block.barrier();
    }
  }

  /// Numbers without a sign are in the order of their bits.
  template <class Block>
  static PORTILE_DEVICE float block_max(const Block& block, float amax, float* scratch) {
    const float of_wave = numeric::bits_float(block.wave_max(numeric::float_bits(amax)));
    if (block.lane() == 0) scratch[block.wave()] = of_wave;
    block.barrier();
    const float one = block.lane() < Block::num_waves ? scratch[block.lane()] : 0.0f;
    return numeric::bits_float(block.wave_max(numeric::float_bits(one)));
  }
  /// The values of a wave from column `start` on: 24 bytes a lane, put together so that a store of 16 bytes a
  /// lane leaves no gaps.
  template <class Block>
  static PORTILE_DEVICE void store_e5m6(const Block& block, const run16<In>& x, float factor,
                                        bool power_of_two, Code* out, std::int64_t start,
                                        std::int64_t hidden) {
    constexpr int lane_bytes = 24;
    auto* staged =
        block.template shared<unsigned char>(scratch_bytes) + block.wave() * (Block::wave_size * lane_bytes);
    std::uint32_t pairs[8], words[6];
    bool done = false;
    if constexpr (std::is_same_v<In, numeric::bf16>) done = to_e5m6x16(x.q, factor, power_of_two, pairs);
    if (!done) {
      PORTILE_UNROLL
      for (int i = 0; i < values / 2; ++i) pairs[i] = x.e5m6_pair(i, factor);
    }
    pack_e5m6x16(pairs, words);
    PORTILE_UNROLL
    for (int k = 0; k < 3; ++k)
      store8(staged + block.lane() * lane_bytes + 8 * k, {{words[2 * k], words[2 * k + 1]}});
    block.wave_barrier();
    const std::int64_t left = (hidden - start) / values * lane_bytes;
    auto* to = reinterpret_cast<unsigned char*>(out) + start / 2 * 3;
    PORTILE_UNROLL
    for (int k = 0; k < 2; ++k) {
      const int at = (block.lane() + k * Block::wave_size) * 16;
      if (at >= Block::wave_size * lane_bytes || at >= left) continue;
      if (at + 16 <= left)
        store16(to + at, load16(staged + at));
      else
        store8(to + at, load8(staged + at));
    }
    block.wave_barrier();
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
        amax = amax_step(amax, load_value(row, j) * p.x_sf(sf_row, p.block_cols.quotient(j)));
      for (int m = 1; m < Block::wave_size; m *= 2) {
        const float other = block.shuffle_xor(amax, m);
        amax = other > amax ? other : amax;
      }
      numeric::scale s{};
      if (p.given()) {
        s.sf_inv = 1.0f / p.given_sf(t, column);
      } else {
        s = make_scale(amax, p.clamp, p.max_q(), p.flags);
        if (block.lane() == 0) p.out_sf(t, column, s);
      }
      if (!p.encodes) continue;

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

/// What the four operations ask for.
struct token_cast {
  tensor x{};
  tensor x_sf{};
  std::int64_t x_block_rows = 0, x_block_cols = 0;
  tensor out{};  ///< absent: scales only
  tensor out_sf{};
  dtype codes = dtype::none;
  bool given_sf = false;
  std::int64_t group = 0;
  quant::scale_flags flags{};
  bool stochastic = false;
};

template <class In, class Code>
void launch_typed(const context& c, const token_cast& p) {
  cast_params<In, Code> common;
  common.x = static_cast<const In*>(p.x.data);
  common.out = static_cast<Code*>(p.out.data);
  common.x_stride = p.x.stride(0);
  common.out_stride = p.out.stride(0);
  common.rows = p.x.extent(0);
  common.hidden = value_extent(p.x.dtype, p.x.extent(1));
  common.group = p.group;
  common.encodes = p.out.defined();
  if (common.rows == 0 || common.hidden == 0) return;
  const std::int64_t groups = numeric::ceil_div(common.hidden, common.group);
  if (p.x_sf) {
    common.block_rows = divider(p.x_block_rows, common.rows);
    common.block_cols = divider(p.x_block_cols, common.hidden);
    common.x_sf = scale_reader(p.x_sf, p.x_block_cols == 1);
  }
  if (p.given_sf)
    common.given_sf = scale_reader(p.out_sf, false);
  else
    common.out_sf = scale_writer(p.out_sf, groups);
  common.flags = p.flags;
  common.clamp = quant::amax_clamp(p.codes, p.flags);

  if constexpr (!std::is_same_v<Code, numeric::e5m6x8>) {
    using fast = aligned_cast<In, Code>;
    const bool aligned =
        loads_aligned<In, fast::values>(p.x) && (!p.out || stores_aligned<Code, fast::values>(p.out));
    const bool one_scale_each = !p.x_sf || p.x_block_cols % fast::values == 0;
    const bool small_group =
        common.group <= 128 && 128 % common.group == 0 && common.group % fast::values == 0;
    const int lanes = static_cast<int>(common.group / fast::values);
    const std::int64_t in_row = groups * lanes, chunks = common.rows * in_row;
    if (aligned && one_scale_each && small_group && !p.stochastic && byte_rows::fit(p.x, p.out) &&
        chunks + fast::threads < narrow_divider::limit && in_row * fast::values < narrow_divider::limit) {
      const auto block_side = [](std::int64_t side, std::int64_t extent) {
        return narrow_divider(std::clamp<std::int64_t>(side, 1, extent));
      };
      typename fast::params k{};
      static_cast<cast_params<In, Code>&>(k) = common;
      k.x_rows = byte_rows(p.x);
      k.out_rows = byte_rows(p.out);
      k.row_chunks = narrow_divider(in_row);
      k.in_rows = block_side(p.x_block_rows, common.rows);
      k.in_cols = block_side(p.x_block_cols, common.hidden);
      k.chunks = static_cast<std::uint32_t>(chunks);
      k.columns = static_cast<std::uint32_t>(common.hidden);
      k.lanes = lanes;
      k.group_shift = shift_of(common.group);
      k.plain_x_sf = p.x_sf && !common.x_sf.along_rows && scale_table::fits(p.x_sf);
      if (k.plain_x_sf) k.x_scales = scale_table(p.x_sf, 0);
      k.plain_sf = scale_table::fits(p.out_sf);
      if (k.plain_sf) k.scales = scale_table(p.out_sf, groups);
      return gpu::launch<fast>(c, numeric::ceil_div(chunks, fast::threads), 0, k);
    }
  }
  if constexpr (sizeof(In) > 1) {
    using row = row_cast<In, Code>;
    constexpr std::int64_t store_bytes = std::is_same_v<Code, numeric::e2m1x2> ? 8 : 16;
    if (groups == 1 && common.hidden % row::values == 0 && !p.stochastic && common.encodes && !p.given_sf &&
        rows_aligned(p.x, 16) && rows_aligned(p.out, store_bytes))
      return gpu::launch<row>(c, common.rows, row::shared_bytes, {common});
  }
  // E5M6 is for plain values only.
  if constexpr (sizeof(In) > 1 || !std::is_same_v<Code, numeric::e5m6x8>) {
    using general = general_cast<In, Code>;
    const typename general::params g{common, divider(groups, common.rows * groups), common.rows * groups,
                                     p.stochastic};
    gpu::launch<general>(c, numeric::ceil_div(g.groups, general::threads / c.call.device->wave_size), 0, g);
  }
}

void launch_cast(const context& c, const token_cast& p) {
  visit<float, numeric::bf16, numeric::e4m3, numeric::e2m1x2>(p.x.dtype, [&](auto in) {
    visit<numeric::e4m3, numeric::e2m1x2, numeric::e5m6x8>(
        p.codes, [&](auto code) { launch_typed<decltype(in), decltype(code)>(c, p); });
  });
}

struct per_token_cast_simt {
  static void launch(const context& c, const quant::per_token_cast& p) {
    launch_cast(c, {.x = p.x,
                    .x_sf = p.x_sf,
                    .x_block_rows = p.x_block_rows,
                    .x_block_cols = p.x_block_cols,
                    .out = p.out,
                    .out_sf = p.out_sf,
                    .codes = p.out.dtype,
                    .group = p.num_per_channels,
                    .flags = quant::flags_of(p),
                    .stochastic = p.stochastic_rounding});
  }
};
struct per_token_cast_to_e5m6_simt {
  static void launch(const context& c, const quant::per_token_cast_to_e5m6& p) {
    launch_cast(c, {.x = p.x,
                    .out = p.out,
                    .out_sf = p.out_sf,
                    .codes = p.out.dtype,
                    .group = p.x.extent(1),
                    .flags = quant::flags_of(p)});
  }
};
struct per_token_cast_with_precomputed_sf_simt {
  static void launch(const context& c, const quant::per_token_cast_with_precomputed_sf& p) {
    launch_cast(c, {.x = p.x,
                    .out = p.out,
                    .out_sf = p.out_sf,
                    .codes = p.out.dtype,
                    .given_sf = true,
                    .group = p.num_per_channels});
  }
};
struct per_token_cast_with_sf_only_simt {
  static void launch(const context& c, const quant::per_token_cast_with_sf_only& p) {
    launch_cast(c, {.x = p.x,
                    .out_sf = p.out_sf,
                    .codes = quant::dtype_of_format(p.fmt, dtype::none),
                    .group = p.num_per_channels,
                    .flags = quant::flags_of(p)});
  }
};

}  // namespace

extern const portile_implementation quant_per_token_cast_simt, quant_per_token_cast_to_e5m6_simt,
    quant_per_token_cast_with_precomputed_sf_simt, quant_per_token_cast_with_sf_only_simt;
const portile_implementation quant_per_token_cast_simt =
    make_simt<quant::per_token_cast, per_token_cast_simt>();
const portile_implementation quant_per_token_cast_to_e5m6_simt =
    make_simt<quant::per_token_cast_to_e5m6, per_token_cast_to_e5m6_simt>();
const portile_implementation quant_per_token_cast_with_precomputed_sf_simt =
    make_simt<quant::per_token_cast_with_precomputed_sf, per_token_cast_with_precomputed_sf_simt>();
const portile_implementation quant_per_token_cast_with_sf_only_simt =
    make_simt<quant::per_token_cast_with_sf_only, per_token_cast_with_sf_only_simt>();

}  // namespace portile::gpu
