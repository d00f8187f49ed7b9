#include <portile/kernels/quant/swiglu_forward.hpp>
#include <portile/kernels/quant/swiglu_forward_and_per_token_cast.hpp>

#include "backends/gpu/quant/near_rows.hpp"
#include "backends/gpu/quant/swiglu_estimates.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {
namespace {

/// What the clamp cuts, three numbers of 21 bits each: left, right above, right below.
struct clamp_counts {
  std::uint64_t packed = 0;
  PORTILE_DEVICE void add(const swiglu_clamp& clamp, float l, float r) {
    packed += (std::uint64_t{clamp.cuts_left(l)} | std::uint64_t{clamp.cuts_right_above(r)} << 21 |
               std::uint64_t{clamp.cuts_right_below(r)} << 42);
  }
  /// Adds the block's numbers to the counters, one atomic each. `activations`: for the fourth counter.
  template <class Block>
  PORTILE_DEVICE void flush(const Block& block, std::uint64_t* counters, std::uint32_t activations,
                            bool counts_all, std::uint64_t* scratch) const {
    const std::uint64_t sum = reduce_block(block, packed, plus{}, scratch);
    block.barrier();
    std::uint64_t all = 0;
    if (counts_all) all = reduce_block(block, std::uint64_t{activations}, plus{}, scratch);
    if (block.thread() == 0) {
      for (int k = 0; k < 3; ++k) {
        const std::uint64_t n = sum >> (21 * k) & 0x1FFFFFu;
        if (n) block.atomic_add(counters + k, n);
      }
      if (all) block.atomic_add(counters + 3, all);
    }
    block.barrier();
  }
};

template <class In, class Out>
struct swiglu_params {
  const In* x;
  Out* out;
  std::int64_t x_stride, out_stride, rows, hidden;
  const std::int32_t* pos_to_expert;
  segments experts;
  row_weight weight;
  swiglu_clamp clamp;
  std::uint64_t* counters;  ///< absent: nothing is counted
  std::uint64_t* trap;
  scale_writer out_sf;
  quant::scale_flags flags;
  float amax_clamp;
  bool counts_all, x_aligned, out_aligned;

  template <int Count>
  PORTILE_DEVICE void load(std::int64_t t, std::int64_t j, float* l, float* r) const {
    load_chunk<Count>(x + t * x_stride, j, x_aligned, l);
    load_chunk<Count>(x + t * x_stride, hidden + j, x_aligned, r);
  }
};

// Shared memory: the sums of the waves, then one flag a row.
template <int Threads>
constexpr std::size_t flags_offset() {
  return Threads / 32 * sizeof(std::uint64_t);
}

/// A thread holds `values` activations; a group of channels is 1 to 16 lanes. Rows as they are without scales
/// count as groups of one lane.
template <class In, class Out>
struct swiglu_chunks {
  static constexpr bool quantised = std::is_same_v<Out, numeric::e4m3>;
  static constexpr int threads = 256;
  static constexpr int values = quantised ? 16 : 8;
  struct params : swiglu_params<In, Out> {
    divider row_chunks;
    std::int64_t chunks;
    int lanes, group_shift;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* sums = block.template shared<std::uint64_t>();
    auto* owned = block.template shared<std::uint32_t>(flags_offset<threads>());
    p.experts.check(block, p.rows, p.trap);
    for (std::int64_t base = block.index() * threads; base < p.chunks; base += block.grid() * threads) {
      const std::int64_t chunk = base + block.thread();
      const std::int64_t t = p.row_chunks.quotient(chunk);
      const std::int64_t first = (chunk - t * p.row_chunks.value()) * values;
      bool live = t < p.rows && first < p.hidden;
      if (p.experts.given) {
        const std::int64_t top = p.row_chunks.quotient(base);
        p.experts.mark(block, top, p.row_chunks.quotient(base + threads - 1), false, owned);
        live = live && owned[t - top] != 0;
      } else if (p.pos_to_expert) {
        live = live && p.pos_to_expert[t] >= 0;
      }

      float v[values], amax = 0.0f;
      clamp_counts counts;
      if (live) {
        float r[values];
        p.template load<values>(t, first, v, r);
        const float w = p.weight(t, p.trap);
        PORTILE_UNROLL
        for (int i = 0; i < values; ++i) {
          if (p.counters) counts.add(p.clamp, v[i], r[i]);
          v[i] = p.clamp.activation(v[i], r[i]) * w;
        }
      }
      if constexpr (quantised) {
        if (live) amax = amax_of<values>(amax, v);
        amax = reduce_lanes(block, amax, p.lanes, larger{});
      }
      if (live) {
        if constexpr (quantised) {
          const numeric::scale s = make_scale(amax, p.amax_clamp, numeric::max_e4m3, p.flags);
          const std::int64_t column = first >> p.group_shift;
          if (column << p.group_shift == first) p.out_sf(t, column, s);
          PORTILE_UNROLL
          for (int i = 0; i < values; ++i) v[i] *= s.sf_inv;
        }
        store_chunk<values>(p.out + t * p.out_stride, first, p.out_aligned, v);
      }
      if (p.counters) counts.flush(block, p.counters, live ? values : 0, p.counts_all, sums);
      block.barrier();
    }
  }
};

/// The same for aligned rows of bf16 whose sizes fit 32 bits. The activations are estimated first; where the
/// bounds of an estimate do not round to the same result, the activation is computed, from memory again: no
/// registers are kept for that.
template <class Out>
struct swiglu_estimated {
  static constexpr bool quantised = std::is_same_v<Out, numeric::e4m3>;
  static constexpr int threads = 256, min_blocks = quantised ? 4 : 6;
  static constexpr int values = quantised ? 16 : 8, pairs = values / 2;
  static constexpr swiglu_bounds bounds = quantised ? swiglu_to_e4m3 : swiglu_to_bf16;
  [[maybe_unused]] static constexpr float up = 1.0f + bounds.error, down = 1.0f - bounds.error;
  struct params : swiglu_params<numeric::bf16, Out> {
    byte_rows x_rows, out_rows;
    scale_table scales;
    std::uint32_t columns;
    narrow_divider row_chunks;
    std::int64_t chunks;
    int lanes, group_shift;
    swiglu_limits limits;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* sums = block.template shared<std::uint64_t>();
    auto* owned = block.template shared<std::uint32_t>(flags_offset<threads>());
    p.experts.check(block, p.rows, p.trap);
    for (std::int64_t base = block.index() * threads; base < p.chunks; base += block.grid() * threads) {
      const auto first_chunk = static_cast<std::uint32_t>(base);
      const std::uint32_t chunk = first_chunk + static_cast<std::uint32_t>(block.thread());
      chunk_of c{p.row_chunks.quotient(chunk), 0};
      c.first = (chunk - c.row * p.row_chunks.value()) * values;
      c.live = c.row < p.rows && c.first < p.columns;
      if (p.experts.given) {
        const std::uint32_t top = p.row_chunks.quotient(first_chunk);
        p.experts.mark(block, top, p.row_chunks.quotient(first_chunk + threads - 1), false, owned);
        c.live = c.live && owned[c.row - top] != 0;
      } else if (p.pos_to_expert) {
        c.live = c.live && p.pos_to_expert[c.row] >= 0;
      }
      if (c.live) {
        c.load(c.x(p), c.left);
        c.load(c.x(p) + p.columns, c.right);
        c.weight = p.weight(c.row, p.trap);
      }
      clamp_counts counts;
      if constexpr (quantised)
        to_codes(block, p, c, counts);
      else
        to_bf16(p, c, counts);
      if (p.counters) counts.flush(block, p.counters, c.live ? values : 0, p.counts_all, sums);
      if (p.experts.given) block.barrier();
    }
  }

 private:
  struct chunk_of {
    std::uint32_t row, first;
    bool live = false;
    std::uint32_t left[pairs] = {}, right[pairs] = {};
    float weight = 1.0f;

    static PORTILE_DEVICE void load(const numeric::bf16* p, std::uint32_t (&words)[pairs]) {
      PORTILE_UNROLL
      for (int i = 0; i < pairs; i += 4) {
        const words4 w = load16(p + 2 * i);
        PORTILE_UNROLL
        for (int k = 0; k < 4; ++k) words[i + k] = w.w[k];
      }
    }
    PORTILE_DEVICE const numeric::bf16* x(const params& p) const {
      return p.x_rows.template row<const numeric::bf16>(row) + first;
    }
    PORTILE_DEVICE float estimate(int i) const {
      const std::uint32_t l = left[i / 2], r = right[i / 2];
      return silu_estimate(i % 2 ? bf16_high(l) : bf16_low(l)) * (i % 2 ? bf16_high(r) : bf16_low(r)) *
             weight;
    }
    /// Calls f(i, left, right, value) for each value of the mask, with the values themselves.
    template <class F>
    PORTILE_DEVICE void compute(const params& p, std::uint32_t mask, F f) const {
      PORTILE_NO_UNROLL
      while (mask != 0) {
        const int i = first_lane(mask);
        mask &= mask - 1;
        const float l = load_value(x(p), i), r = load_value(x(p) + p.columns, i);
        f(i, l, r, exact_activation(p.clamp, l, r) * weight);
      }
    }
  };

  template <class Block>
  static PORTILE_DEVICE void to_codes(const Block& block, const params& p, const chunk_of& c,
                                      clamp_counts& counts) {
    const bool within = p.limits.hold(c.left, c.right) && ::fabsf(c.weight) <= 0x1p20f;
    float v[values];
    PORTILE_UNROLL
    for (int i = 0; i < values; ++i) v[i] = c.estimate(i);
    float largest = largest_of(v);
    const float amax = group_max(block, p, within ? largest : numeric::infinity());
    numeric::scale s = e4m3_scale(amax * up, p.amax_clamp, true);
    // Other scales than powers of two show all bits of amax.
    const bool sure = p.flags.round && amax <= numeric::fp32_max &&
                      s.exponent == e4m3_scale(amax * down, p.amax_clamp, true).exponent;
    // The lanes of a wave stay together: they share the scales.
    if (block.ballot(!sure) != 0) {
      // amax itself is the value of one whose estimate is close to the largest.
      largest = group_max(block, p, within ? largest : 0.0f);
      const float least =
          largest * up > p.amax_clamp ? largest * (1.0f - 3 * bounds.error) : numeric::infinity();
      std::uint32_t candidates = 0;
      PORTILE_UNROLL
      for (int i = 0; i < values; ++i) candidates |= std::uint32_t{!within || ::fabsf(v[i]) >= least} << i;
      float exact = 0.0f;
      if (c.live)
        c.compute(p, candidates,
                  [&](int, float, float, float value) { exact = max_number(::fabsf(value), exact); });
      s = e4m3_scale(group_max(block, p, exact), p.amax_clamp, p.flags.round);
    }
    if (!c.live) return;

    const float high = s.sf_inv * up, low = s.sf_inv * down;
    std::uint32_t codes[4], differ[4], any = 0;
    PORTILE_UNROLL
    for (int i = 0; i < values; i += 4) {
      codes[i / 4] = to_e4m3x4(v[i] * high, v[i + 1] * high, v[i + 2] * high, v[i + 3] * high);
      differ[i / 4] = codes[i / 4] ^ to_e4m3x4(v[i] * low, v[i + 1] * low, v[i + 2] * low, v[i + 3] * low);
      any |= differ[i / 4];
    }
    auto* out = p.out_rows.template row<numeric::e4m3>(c.row) + c.first;
    store16(out, {{codes[0], codes[1], codes[2], codes[3]}});
    const std::uint32_t column = c.first >> p.group_shift;
    if (column << p.group_shift == c.first) p.scales.store(c.row, column, s);
    if (within && any == 0) return;
    std::uint32_t unsure = 0;
    PORTILE_UNROLL
    for (int i = 0; i < values; ++i)
      unsure |= std::uint32_t{!within || (differ[i / 4] >> (i % 4 * 8) & 0xFFu) != 0} << i;
    c.compute(p, unsure, [&](int i, float l, float r, float value) {
      if (p.counters && !within) counts.add(p.clamp, l, r);
      out[i] = {static_cast<std::uint8_t>(to_e4m3x2(value * s.sf_inv, 0.0f))};
    });
  }
  template <class Block>
  static PORTILE_DEVICE float group_max(const Block& block, const params& p, float amax) {
    amax = max_number(amax, block.shuffle_xor(amax, 1));
    if (p.lanes > 2) {
      amax = max_number(amax, block.shuffle_xor(amax, 2));
      amax = max_number(amax, block.shuffle_xor(amax, 4));
    }
    return amax;
  }

  static PORTILE_DEVICE void to_bf16(const params& p, const chunk_of& c, clamp_counts& counts) {
    if (!c.live) return;
    const swiglu_eight e(c.left, c.right, c.weight, p.limits);
    auto* out = p.out_rows.template row<numeric::bf16>(c.row) + c.first;
    store16(out, {{e.out[0], e.out[1], e.out[2], e.out[3]}});
    if (e.unsure == 0) return;
    c.compute(p, e.unsure, [&](int i, float l, float r, float value) {
      // Whether or not they are cut: nothing is where all are within the limits.
      if (p.counters) counts.add(p.clamp, l, r);
      store_value(out, i, value);
    });
  }
};

/// One scale a row: a block a row; the first activations of a thread stay in registers.
template <class In>
struct swiglu_rows {
  static constexpr int threads = 256, values = 16;
  using params = swiglu_params<In, numeric::e4m3>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* sums = block.template shared<std::uint64_t>();
    auto* owned = block.template shared<std::uint32_t>(flags_offset<threads>());
    auto* amax_scratch = reinterpret_cast<float*>(owned);
    constexpr std::int64_t step = threads * values;
    p.experts.check(block, p.rows, p.trap);
    for (std::int64_t t = block.index(); t < p.rows; t += block.grid()) {
      bool live = !p.pos_to_expert || p.pos_to_expert[t] >= 0;
      if (p.experts.given) {
        p.experts.mark(block, t, t, false, owned);
        live = owned[0] != 0;
        block.barrier();
      }
      if (!live) continue;
      const float w = p.weight(t, p.trap);
      const std::int64_t first = block.thread() * values;
      float v[values], amax = 0.0f;
      // From the last chunk to the first, which is the one that stays.
      for (std::int64_t j = first + (p.hidden - 1) / step * step; j >= 0; j -= step) {
        clamp_counts counts;
        if (j < p.hidden) {
          activations(p, t, j, w, v, counts);
          amax = amax_of<values>(amax, v);
        }
        if (p.counters) counts.flush(block, p.counters, j < p.hidden ? values : 0, p.counts_all, sums);
      }
      amax = reduce_block(block, amax, larger{}, amax_scratch);
      const numeric::scale s = make_scale(amax, p.amax_clamp, numeric::max_e4m3, p.flags);
      if (block.thread() == 0 && p.hidden > 0) p.out_sf(t, 0, s);
      for (std::int64_t j = first; j < p.hidden; j += step) {
        clamp_counts unused;
        if (j > first) activations(p, t, j, w, v, unused);
        PORTILE_UNROLL
        for (int i = 0; i < values; ++i) v[i] *= s.sf_inv;
        store_chunk<values>(p.out + t * p.out_stride, j, p.out_aligned, v);
      }
      block.barrier();
    }
  }

 private:
  static PORTILE_DEVICE void activations(const params& p, std::int64_t t, std::int64_t j, float w, float* v,
                                         clamp_counts& counts) {
    float r[values];
    p.template load<values>(t, j, v, r);
    PORTILE_UNROLL
    for (int i = 0; i < values; ++i) {
      counts.add(p.clamp, v[i], r[i]);
      v[i] = p.clamp.activation(v[i], r[i]) * w;
    }
  }
};

template <class In, class Out, class P>
swiglu_params<In, Out> common_params(const context& c, const P& p) {
  swiglu_params<In, Out> k{};
  k.x = static_cast<const In*>(p.x.data);
  k.out = static_cast<Out*>(p.out.data);
  k.x_stride = p.x.stride(0);
  k.out_stride = p.out.stride(0);
  k.rows = p.out.extent(0);
  k.hidden = p.out.extent(1);
  if constexpr (requires { p.pos_to_expert; })
    if (p.pos_to_expert) k.pos_to_expert = static_cast<const std::int32_t*>(p.pos_to_expert.data);
  k.experts = segments(p);
  k.weight = row_weight(p);
  k.clamp = swiglu_clamp(p.clamp_value);
  if (p.clamped_count) {
    k.counters = static_cast<std::uint64_t*>(p.clamped_count.data);
    k.counts_all = p.clamped_count.extent(0) > 3;
  }
  k.trap = c.call.trap;
  return k;
}

/// True when the problem has the sizes and addresses for estimates; starts them then. `group`: as below.
template <class Out>
bool launch_estimated(const context& c, const swiglu_params<numeric::bf16, Out>& common, const tensor& x,
                      const tensor& out, const tensor& out_sf, std::int64_t group) {
  using kernel = swiglu_estimated<Out>;
  if (!rows_aligned(x, 16) || !rows_aligned(out, 16) || !byte_rows::fit(x, out) ||
      (out_sf && !scale_table::fits(out_sf)) || common.rows >= byte_rows::limit ||
      8 * common.hidden >= byte_rows::limit || common.hidden % kernel::values != 0)
    return false;
  typename kernel::params k{};
  static_cast<swiglu_params<numeric::bf16, Out>&>(k) = common;
  k.x_rows = byte_rows(x);
  k.out_rows = byte_rows(out);
  k.columns = static_cast<std::uint32_t>(common.hidden);
  if (out_sf) k.scales = scale_table(out_sf, numeric::ceil_div(common.hidden, group));
  k.lanes = static_cast<int>(group / kernel::values);
  k.group_shift = shift_of(group);
  k.limits = swiglu_limits(kernel::bounds, common.clamp);
  const std::int64_t in_row = numeric::ceil_div(common.hidden, group) * k.lanes;
  k.chunks = common.rows * in_row;
  if (k.chunks + kernel::threads >= narrow_divider::limit) return false;
  if (k.chunks > 0) k.row_chunks = narrow_divider(in_row);
  gpu::launch<kernel>(c, k.experts.blocks(numeric::ceil_div(k.chunks, kernel::threads)),
                      flags_offset<kernel::threads>() + kernel::threads * sizeof(std::uint32_t), k);
  return true;
}

/// `group`: channels that share a scale.
template <class In, class Out>
void launch_chunks(const context& c, const swiglu_params<In, Out>& common, std::int64_t group) {
  using kernel = swiglu_chunks<In, Out>;
  typename kernel::params k{common, {}, 0, static_cast<int>(group / kernel::values), shift_of(group)};
  const std::int64_t in_row = numeric::ceil_div(common.hidden, group) * k.lanes;
  k.chunks = common.rows * in_row;
  if (k.chunks > 0) k.row_chunks = divider(in_row, k.chunks + kernel::threads);
  gpu::launch<kernel>(c, k.experts.blocks(numeric::ceil_div(k.chunks, kernel::threads)),
                      flags_offset<kernel::threads>() + kernel::threads * sizeof(std::uint32_t), k);
}

struct swiglu_forward_simt {
  static void launch(const context& c, const quant::swiglu_forward& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
      visit<float, numeric::bf16>(p.out.dtype, [&](auto out) {
        using kernel = swiglu_chunks<decltype(in), decltype(out)>;
        auto k = common_params<decltype(in), decltype(out)>(c, p);
        k.x_aligned = loads_aligned<decltype(in), kernel::values>(p.x);
        k.out_aligned = stores_aligned<decltype(out), kernel::values>(p.out);
        if constexpr (std::is_same_v<decltype(in), numeric::bf16> &&
                      std::is_same_v<decltype(out), numeric::bf16>)
          if (launch_estimated(c, k, p.x, p.out, {}, swiglu_estimated<numeric::bf16>::values)) return;
        launch_chunks(c, k, kernel::values);
      });
    });
  }
};

struct swiglu_forward_and_per_token_cast_simt {
  static void launch(const context& c, const quant::swiglu_forward_and_per_token_cast& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
      using in_type = decltype(in);
      auto k = common_params<in_type, numeric::e4m3>(c, p);
      k.x_aligned = loads_aligned<in_type, 16>(p.x);
      k.out_aligned = stores_aligned<numeric::e4m3, 16>(p.out);
      k.out_sf =
          scale_writer(p.out_sf, numeric::ceil_div(k.hidden, std::max<std::int64_t>(p.num_per_channels, 1)));
      k.flags = quant::flags_of(p);
      k.amax_clamp = quant::amax_clamp(dtype::e4m3, k.flags);
      // Rows without values still have their weights looked at.
      const bool in_groups = k.hidden > 0 && (p.num_per_channels == 32 || p.num_per_channels == 128);
      if constexpr (std::is_same_v<in_type, numeric::bf16>)
        if (in_groups && k.amax_clamp >= numeric::max_e4m3 * 0x1p-126f &&
            launch_estimated(c, k, p.x, p.out, p.out_sf, p.num_per_channels))
          return;
      if (in_groups) return launch_chunks(c, k, p.num_per_channels);
      using kernel = swiglu_rows<in_type>;
      gpu::launch<kernel>(c, k.experts.blocks(k.rows),
                          flags_offset<kernel::threads>() + kernel::threads / 32 * sizeof(float), k);
    });
  }
};

}  // namespace

extern const portile_implementation quant_swiglu_forward_simt, quant_swiglu_forward_and_per_token_cast_simt;
const portile_implementation quant_swiglu_forward_simt =
    make_simt<quant::swiglu_forward, swiglu_forward_simt>();
const portile_implementation quant_swiglu_forward_and_per_token_cast_simt =
    make_simt<quant::swiglu_forward_and_per_token_cast, swiglu_forward_and_per_token_cast_simt>();

}  // namespace portile::gpu
