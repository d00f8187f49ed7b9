#include <portile/kernels/quant/swiglu_backward.hpp>
#include <portile/kernels/quant/swiglu_backward_and_per_token_cast.hpp>

#include "backends/gpu/quant/near_rows.hpp"
#include "backends/gpu/quant/sigmoid_table.hpp"
#include "backends/gpu/quant/swiglu.hpp"
#include "backends/gpu/reduce.hpp"
#include "backends/gpu/rows.hpp"

namespace portile::gpu {
namespace {

template <class In, class Grad, class Out>
struct gradient_params {
  const In* x;
  const Grad* out_grad;
  Out* x_grad;
  Out* act_out;          ///< optional
  float* weight_grad;    ///< one a row, optional
  numeric::e4m3* codes;  ///< quantised gradients
  std::int64_t x_stride, out_grad_stride, x_grad_stride, act_stride, codes_stride, rows, hidden;
  segments experts;
  row_weight weight;
  swiglu_clamp clamp;
  scale_reader x_sf;
  scale_writer codes_sf;
  quant::scale_flags flags;
  float clamp_min;  ///< of amax
  std::uint64_t* trap;
  int lanes, group_shift;
  bool aligned;
};

/// A block a row, because the gradient of a weight is a sum over the row; eight elements of each half a
/// thread and step. In e4m3: the gradients are also quantised, with groups of 4 or 16 lanes.
template <class In, class Grad, class Out>
struct gradients {
  static constexpr bool quantised = std::is_same_v<In, numeric::e4m3>;
  static constexpr int threads = 256, values = 8;
  using params = gradient_params<In, Grad, Out>;
  // The sums of the waves, then the flag of the row.
  static constexpr std::size_t flag_offset = threads / 32 * sizeof(float);
  static constexpr std::size_t shared_bytes = flag_offset + sizeof(std::uint32_t);

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* sums = block.template shared<float>();
    auto* flag = block.template shared<std::uint32_t>(flag_offset);
    p.experts.check(block, p.rows, p.trap);
    for (std::int64_t t = block.index(); t < p.rows; t += block.grid()) {
      if (p.experts.given) {
        p.experts.mark(block, t, t, true, flag);
        const bool padding = *flag != 0;
        block.barrier();
        if (padding) {
          clear(block, p, t);
          continue;
        }
      }
      const float w = p.weight(t, p.trap);
      float sum = 0.0f;
      for (std::int64_t base = 0; base < p.hidden; base += threads * values) {
        const std::int64_t j = base + block.thread() * values;
        const bool live = j < p.hidden;
        float l[values], r[values], g[values];
        if (live) {
          const In* x = p.x + t * p.x_stride;
          load_chunk<values>(x, j, p.aligned, l);
          load_chunk<values>(x, p.hidden + j, p.aligned, r);
          load_chunk<values>(p.out_grad + t * p.out_grad_stride, j, p.aligned, g);
          if constexpr (quantised) {
            const float left_sf = p.x_sf(t, j >> p.group_shift);
            const float right_sf = p.x_sf(t, (p.hidden + j) >> p.group_shift);
            PORTILE_UNROLL
            for (int i = 0; i < values; ++i) {
              l[i] *= left_sf;
              r[i] *= right_sf;
            }
          }
          PORTILE_UNROLL
          for (int i = 0; i < values; ++i) {
            const swiglu_gradient e(l[i], r[i], g[i], w, p.clamp);
            sum += g[i] * e.activation;
            l[i] = e.left;
            r[i] = e.right;
            g[i] = e.activation * w;
          }
          Out* x_grad = p.x_grad + t * p.x_grad_stride;
          store_chunk<values>(x_grad, j, p.aligned, l);
          store_chunk<values>(x_grad, p.hidden + j, p.aligned, r);
          if (p.act_out) store_chunk<values>(p.act_out + t * p.act_stride, j, p.aligned, g);
        }
        if constexpr (quantised) {
          quantise(block, p, t, j, live, l);
          quantise(block, p, t, p.hidden + j, live, r);
        }
      }
      if (p.weight_grad) {
        sum = reduce_block(block, sum, plus{}, sums);
        if (block.thread() == 0) p.weight_grad[t] = sum * p.weight.factor;
        block.barrier();
      }
    }
  }

  /// Zeroes row t.
  template <class Block>
  static PORTILE_DEVICE void clear(const Block& block, const params& p, std::int64_t t) {
    const float zeros[values] = {};
    for (std::int64_t j = block.thread() * values; j < 2 * p.hidden; j += threads * values) {
      store_chunk<values>(p.x_grad + t * p.x_grad_stride, j, p.aligned, zeros);
      if (p.act_out && j < p.hidden) store_chunk<values>(p.act_out + t * p.act_stride, j, p.aligned, zeros);
      if constexpr (quantised) {
        store_chunk<values>(p.codes + t * p.codes_stride, j, p.aligned, zeros);
        const std::int64_t column = j >> p.group_shift;
        if (column << p.group_shift == j) p.codes_sf(t, column, {0, 0, 0});
      }
    }
    if (p.weight_grad && block.thread() == 0) p.weight_grad[t] = 0.0f;
  }

 private:
  template <class Block>
  static PORTILE_DEVICE void quantise(const Block& block, const params& p, std::int64_t t, std::int64_t c,
                                      bool live, float* v) {
    float amax = 0.0f;
    if (live) amax = amax_of<values>(amax, v);
    amax = reduce_lanes(block, amax, p.lanes, larger{});
    if (!live) return;
    const numeric::scale s = make_scale(amax, p.clamp_min, numeric::max_e4m3, p.flags);
    const std::int64_t column = c >> p.group_shift;
    if (column << p.group_shift == c) p.codes_sf(t, column, s);
    PORTILE_UNROLL
    for (int i = 0; i < values; ++i) v[i] *= s.sf_inv;
    store_chunk<values>(p.codes + t * p.codes_stride, c, p.aligned, v);
  }
};

/// True for a row of padding, after zeroing it. `flag`: a word of shared memory.
template <class General, class Block, class P>
PORTILE_DEVICE bool skips_padding(const Block& block, const P& p, std::int64_t row, std::uint32_t* flag) {
  if (!p.experts.given) return false;
  p.experts.mark(block, row, row, true, flag);
  const bool padding = *flag != 0;
  block.barrier();
  if (padding) General::clear(block, p, row);
  return padding;
}
/// The gradient of a row's weight out of the threads' sums. `sums`: shared memory for a number a wave, not
/// that of the call before.
template <class Block, class P>
PORTILE_DEVICE void store_weight_grad(const Block& block, const P& p, std::int64_t row, float sum,
                                      float* sums) {
  sum = reduce_wave(block, sum, plus{});
  if (block.lane() == 0) sums[block.wave()] = sum;
  block.barrier();
  if (block.thread() != 0) return;
  sum = 0.0f;
  PORTILE_UNROLL
  for (int i = 0; i < Block::num_waves; ++i) sum += sums[i];
  p.weight_grad[row] = sum * p.weight.factor;
}

/// The same for aligned rows whose sizes fit 32 bits, with short steps for nearly all values.
template <class T, class Out>
struct gradients_near {
  using general = gradients<T, T, Out>;
  static constexpr int threads = 128, values = 8, min_blocks = 8;
  static constexpr std::uint32_t step = threads * values;
  struct params : gradient_params<T, T, Out> {
    byte_rows x_rows, grad_rows, x_grad_rows, act_rows;
    std::uint32_t columns;
  };
  // The sums of the waves twice, in turns; then the flag of the row.
  static constexpr std::size_t flag_offset = 2 * threads / 32 * sizeof(float);
  static constexpr std::size_t shared_bytes = flag_offset + sizeof(std::uint32_t);

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* sums = block.template shared<float>();
    auto* flag = block.template shared<std::uint32_t>(flag_offset);
    p.experts.check(block, p.rows, p.trap);
    int turn = 0;
    for (std::int64_t row = block.index(); row < p.rows; row += block.grid()) {
      if (skips_padding<general>(block, p, row, flag)) continue;
      const auto t = static_cast<std::uint32_t>(row);
      float sum = 0.0f;
      for (std::uint32_t base = 0; base < p.columns; base += 2 * step) {
        // Both chunks are on their way before the first is looked at.
        const std::uint32_t first = base + static_cast<std::uint32_t>(block.thread() * values);
        loaded in, next;
        if (first < p.columns) in.load(p, t, first);
        if (first + step < p.columns) next.load(p, t, first + step);
        const float w = p.weight(row, p.trap);
        PORTILE_NO_UNROLL
        for (std::uint32_t c = 0; c < 2 && base + c * step < p.columns; ++c) {
          const std::uint32_t j = first + c * step;
          if (j < p.columns) row_values(p, t, j, w, in, sum);
          in = next;
        }
      }
      if (p.weight_grad) {
        store_weight_grad(block, p, row, sum, sums + turn * Block::num_waves);
        turn ^= 1;
      }
    }
  }

 private:
  /// What there is of a chunk in memory.
  struct loaded {
    raw8<T> left = {}, right = {}, grad = {};

    PORTILE_DEVICE void load(const params& p, std::uint32_t t, std::uint32_t j) {
      const T* x = p.x_rows.template row<const T>(t) + j;
      left = raw8<T>::template load<true>(x);
      right = raw8<T>::template load<true>(x + p.columns);
      grad = raw8<T>::template load<true>(p.grad_rows.template row<const T>(t) + j);
    }
  };
  static PORTILE_DEVICE void row_values(const params& p, std::uint32_t t, std::uint32_t j, float w,
                                        const loaded& in, float& sum) {
    float l[values], r[values], g[values];
    PORTILE_UNROLL
    for (int i = 0; i < values; ++i) {
      l[i] = in.left[i];
      r[i] = in.right[i];
      g[i] = in.grad[i];
    }
    const auto each = [&](auto gradient) {
      PORTILE_UNROLL
      for (int i = 0; i < values; ++i) {
        const swiglu_gradient e = gradient(i);
        sum = ::fmaf(g[i], e.activation, sum);
        l[i] = e.left;
        r[i] = e.right;
        g[i] = e.activation * w;
      }
    };
    if (p.clamp.is_near(largest_of(l), p.clamp.on ? largest_of(r) : 0.0f))
      each([&](int i) { return swiglu_gradient(l[i], r[i], g[i], w); });
    else
      each([&](int i) { return swiglu_gradient(l[i], r[i], g[i], w, p.clamp); });
    Out* x_grad = p.x_grad_rows.template row<Out>(t) + j;
    store_values<Out, values>(x_grad, 0, l);
    store_values<Out, values>(x_grad + p.columns, 0, r);
    if (p.act_out) store_values<Out, values>(p.act_rows.template row<Out>(t) + j, 0, g);
  }
};

/// The same for codes: a block takes several rows, for which the table of sigmoids pays. Of two neighbouring
/// lanes the even one looks after both lanes' codes of the left half, the odd one after those of the right
/// half.
template <class Grad>
struct code_gradients {
  using Out = numeric::bf16;
  using In = numeric::e4m3;
  using general = gradients<In, Grad, Out>;
  static constexpr int threads = 256, values = 8, min_blocks = sizeof(Grad) == 2 ? 4 : 3;
  static constexpr std::uint32_t step = threads * values;
  struct params : gradient_params<In, Grad, Out> {
    byte_rows x_rows, grad_rows, x_grad_rows, act_rows, code_rows;
    scale_table x_scales, code_scales;
    std::uint32_t columns;
  };
  // The table; the sums of the waves twice, in turns; then the flag of the row.
  static constexpr std::size_t sums_offset = sigmoid_table::shared_bytes;
  static constexpr std::size_t flag_offset = sums_offset + 2 * threads / 32 * sizeof(float);
  static constexpr std::size_t shared_bytes = flag_offset + sizeof(std::uint32_t);
  static std::int64_t blocks(std::int64_t rows) {
    return numeric::ceil_div(rows, std::clamp<std::int64_t>(rows / 2048, 1, 8));
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const sigmoid_table table(block.template shared<float>());
    auto* sums = block.template shared<float>(sums_offset);
    auto* flag = block.template shared<std::uint32_t>(flag_offset);
    p.experts.check(block, p.rows, p.trap);
    const auto first = static_cast<std::uint32_t>(block.thread() * values);
    // The chunk after the one in work is always on its way, also that of the next row.
    loaded next;
    if (block.index() < p.rows) next.load(p, block.index(), first);
    table.fill(block);
    block.barrier();
    int turn = 0;
    for (std::int64_t row = block.index(); row < p.rows; row += block.grid()) {
      const std::int64_t row_after = row + block.grid();
      if (skips_padding<general>(block, p, row, flag)) {
        if (row_after < p.rows) next.load(p, row_after, first);
        continue;
      }
      if (p.trap) (void)p.weight(row, p.trap);
      const auto t = static_cast<std::uint32_t>(row);
      float sum = 0.0f;
      for (std::uint32_t base = 0; base < p.columns; base += step) {
        const loaded in = next;
        const std::uint32_t j = base + first;
        const bool same_row = base + step < p.columns;
        if (same_row || row_after < p.rows)
          next.load(p, same_row ? row : row_after, same_row ? j + step : first);
        float l[values], r[values];
        row_values(p, table, t, j, in, l, r, sum);
        quantise(block, p, t, j, l, r);
      }
      if (p.weight_grad) {
        store_weight_grad(block, p, row, sum, sums + turn * Block::num_waves);
        turn ^= 1;
      }
    }
  }

 private:
  /// What there is of a chunk in memory.
  struct loaded {
    raw_codes8 left = {}, right = {};
    raw8<Grad> grad = {};
    std::uint32_t left_sf = 0, right_sf = 0;
    float weight = 0.0f;

    PORTILE_DEVICE void load(const params& p, std::int64_t row, std::uint32_t j) {
      if (j >= p.columns) return;
      const auto t = static_cast<std::uint32_t>(row);
      const In* x = p.x_rows.template row<const In>(t) + j;
      left = raw_codes8::load<true>(x);
      right = raw_codes8::load<true>(x + p.columns);
      grad = raw8<Grad>::template load<true>(p.grad_rows.template row<const Grad>(t) + j);
      left_sf = p.x_scales.load(t, j >> p.group_shift);
      right_sf = p.x_scales.load(t, (p.columns + j) >> p.group_shift);
      weight = p.weight(row, nullptr);
    }
  };
  /// Leaves the gradients in l and r.
  static PORTILE_DEVICE void row_values(const params& p, const sigmoid_table& table, std::uint32_t t,
                                        std::uint32_t j, const loaded& in, float (&l)[values],
                                        float (&r)[values], float& sum) {
    if (j >= p.columns) {
      PORTILE_UNROLL
      for (int i = 0; i < values; ++i) l[i] = r[i] = 0.0f;
      return;
    }
    const float left_sf = p.x_scales.scale(in.left_sf, j >> p.group_shift);
    const float right_sf = p.x_scales.scale(in.right_sf, (p.columns + j) >> p.group_shift);
    in.left.unpack(l);
    in.right.unpack(r);
    PORTILE_UNROLL
    for (int i = 0; i < values; ++i) {
      l[i] *= left_sf;
      r[i] *= right_sf;
    }
    Out* act_out = p.act_out ? p.act_rows.template row<Out>(t) + j : nullptr;
    if (sigmoid_table::takes(left_sf) && !(p.clamp.on && clamps(p.clamp, l, r))) {
      if (act_out || p.weight_grad) {
        float a[values];
        PORTILE_UNROLL
        for (int i = 0; i < values; ++i) {
          a[i] = table.silu(l[i]) * r[i];
          sum = ::fmaf(in.grad[i], a[i], sum);
          a[i] *= in.weight;
        }
        if (act_out) store_values<Out, values>(act_out, 0, a);
      }
      PORTILE_UNROLL
      for (int i = 0; i < values; ++i) {
        const float sigmoid = table.sigmoid(l[i]), g = (in.grad[i] * in.weight) * sigmoid;
        const float left = (g * r[i]) * ::fmaf(l[i], 1.0f - sigmoid, 1.0f);
        r[i] = g * l[i];
        l[i] = left;
      }
    } else {
      float a[values];
      const auto each = [&](auto gradient) {
        PORTILE_UNROLL
        for (int i = 0; i < values; ++i) {
          const swiglu_gradient e = gradient(i);
          sum = ::fmaf(in.grad[i], e.activation, sum);
          l[i] = e.left;
          r[i] = e.right;
          a[i] = e.activation * in.weight;
        }
      };
      if (p.clamp.is_near(largest_of(l), p.clamp.on ? largest_of(r) : 0.0f))
        each([&](int i) { return swiglu_gradient(l[i], r[i], in.grad[i], in.weight); });
      else
        each([&](int i) { return swiglu_gradient(l[i], r[i], in.grad[i], in.weight, p.clamp); });
      if (act_out) store_values<Out, values>(act_out, 0, a);
    }
    Out* x_grad = p.x_grad_rows.template row<Out>(t) + j;
    store_values<Out, values>(x_grad, 0, l);
    store_values<Out, values>(x_grad + p.columns, 0, r);
  }
  static PORTILE_DEVICE bool clamps(const swiglu_clamp& clamp, const float (&l)[values],
                                    const float (&r)[values]) {
    return largest_of(l) > clamp.value || largest_of(r) > clamp.value;
  }
  template <class Block>
  static PORTILE_DEVICE void quantise(const Block& block, const params& p, std::uint32_t t, std::uint32_t j,
                                      float (&l)[values], float (&r)[values]) {
    const bool odd = block.lane() % 2 != 0;
    const float left = largest_of(l), right = largest_of(r);
    float amax = max_number(odd ? right : left, block.shuffle_xor(odd ? left : right, 1));
    amax = max_number(amax, block.shuffle_xor(amax, 2));
    if (p.lanes > 4) {
      amax = max_number(amax, block.shuffle_xor(amax, 4));
      amax = max_number(amax, block.shuffle_xor(amax, 8));
    }
    const numeric::scale s = e4m3_scale(amax, p.clamp_min, p.flags.round);
    const float other = block.shuffle_xor(s.sf_inv, 1);
    const float left_inv = odd ? other : s.sf_inv, right_inv = odd ? s.sf_inv : other;
    PORTILE_UNROLL
    for (int i = 0; i < values; ++i) {
      l[i] *= left_inv;
      r[i] *= right_inv;
    }
    const words2 left_codes{{to_e4m3x4(l[0], l[1], l[2], l[3]), to_e4m3x4(l[4], l[5], l[6], l[7])}};
    const words2 right_codes{{to_e4m3x4(r[0], r[1], r[2], r[3]), to_e4m3x4(r[4], r[5], r[6], r[7])}};
    const words2 kept = odd ? right_codes : left_codes, sent = odd ? left_codes : right_codes;
    const words2 got{{block.shuffle_xor(sent.w[0], 1), block.shuffle_xor(sent.w[1], 1)}};
    if (j >= p.columns) return;
    // From here on the pair's first column, in this lane's half.
    const words2 low = odd ? got : kept, high = odd ? kept : got;
    const std::uint32_t c = odd ? p.columns + j - values : j;
    store16(p.code_rows.template row<unsigned char>(t) + c, {{low.w[0], low.w[1], high.w[0], high.w[1]}});
    if ((block.lane() & (p.lanes - 1)) < 2) p.code_scales.store(t, c >> p.group_shift, s);
  }
};

/// topk_weights_grad[n, k] = row_grad[token_topk_to_pos[n, k]].
struct gather_grads {
  static constexpr int threads = 256;
  struct params {
    const float* row_grad;
    const std::int32_t* pos;
    float* out;
    std::int64_t pos_stride, pos_step, out_stride, out_step, count, rows;
    divider topk;
    std::uint64_t* trap;
  };
  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t i = block.index() * threads + block.thread(); i < p.count;
         i += block.grid() * threads) {
      const std::int64_t n = p.topk.quotient(i), k = i - n * p.topk.value();
      const std::int64_t t = p.pos[n * p.pos_stride + k * p.pos_step];
      if (t >= p.rows) raise_trap(p.trap, 2, i);
      p.out[n * p.out_stride + k * p.out_step] = t >= 0 && t < p.rows ? p.row_grad[t] : 0.0f;
    }
  }
};

/// A stack of matrices with evenly spaced rows as one matrix.
tensor as_matrix(const tensor& t, std::int64_t rows) {
  tensor m = t;
  m.rank = 2;
  m.extents = {rows, t.extent(t.rank - 1)};
  m.strides = {t.stride(t.rank - 2), t.stride(t.rank - 1)};
  return m;
}

/// `row_grad`: the gradients of the rows' weights, or null.
template <class In, class Grad, class Out, class P>
void launch_gradients(const context& c, const P& p, float* row_grad) {
  using kernel = gradients<In, Grad, Out>;
  constexpr int n = kernel::values;
  const tensor x = as_matrix(p.x, p.out_grad.extent(0));
  gradient_params<In, Grad, Out> k{};
  k.x = static_cast<const In*>(x.data);
  k.out_grad = static_cast<const Grad*>(p.out_grad.data);
  k.x_grad = static_cast<Out*>(p.x_grad.data);
  if (p.act_out) k.act_out = static_cast<Out*>(p.act_out.data);
  k.weight_grad = row_grad;
  k.x_stride = x.stride(0);
  k.out_grad_stride = p.out_grad.stride(0);
  k.x_grad_stride = p.x_grad.stride(0);
  k.act_stride = p.act_out ? p.act_out.stride(0) : 0;
  k.rows = p.out_grad.extent(0);
  k.hidden = p.out_grad.extent(1);
  k.experts = segments(p);
  k.weight = row_weight(p);
  k.clamp = swiglu_clamp(p.clamp_value);
  k.trap = c.call.trap;
  k.aligned = loads_aligned<In, n>(x) && loads_aligned<Grad, n>(p.out_grad) &&
              stores_aligned<Out, n>(p.x_grad) && (!p.act_out || stores_aligned<Out, n>(p.act_out));
  if constexpr (kernel::quantised) {
    k.codes = static_cast<numeric::e4m3*>(p.x_grad_fp8.data);
    k.codes_stride = p.x_grad_fp8.stride(0);
    k.x_sf = scale_reader(p.x_sf, false);
    k.codes_sf = scale_writer(p.x_grad_fp8_sf, 2 * k.hidden / p.num_per_channels);
    k.flags = quant::flags_of(p);
    k.clamp_min = quant::amax_clamp(dtype::e4m3, k.flags);
    k.lanes = static_cast<int>(p.num_per_channels / n);
    k.group_shift = shift_of(p.num_per_channels);
    k.aligned = k.aligned && stores_aligned<numeric::e4m3, n>(p.x_grad_fp8);
  }
  const std::int64_t blocks = k.experts.blocks(k.hidden > 0 || row_grad ? k.rows : 0);
  if constexpr (!std::is_same_v<In, float> && std::is_same_v<Out, numeric::bf16>) {
    using near = std::conditional_t<kernel::quantised, code_gradients<Grad>, gradients_near<In, Out>>;
    typename near::params n{};
    static_cast<gradient_params<In, Grad, Out>&>(n) = k;
    n.x_rows = byte_rows(x);
    n.grad_rows = byte_rows(p.out_grad);
    n.x_grad_rows = byte_rows(p.x_grad);
    n.act_rows = byte_rows(p.act_out);
    n.columns = static_cast<std::uint32_t>(k.hidden);
    bool fast = k.aligned && k.rows < byte_rows::limit && 4 * k.hidden < byte_rows::limit &&
                byte_rows::fit(x, p.out_grad, p.x_grad, p.act_out);
    if constexpr (kernel::quantised) {
      n.code_rows = byte_rows(p.x_grad_fp8);
      n.x_scales = scale_table(p.x_sf, 0);
      n.code_scales = scale_table(p.x_grad_fp8_sf, k.codes_sf.cols);
      fast = fast && k.hidden > 0 && byte_rows::fit(p.x_grad_fp8) && rows_aligned(p.x_grad_fp8, 16) &&
             scale_table::fits(p.x_sf) && scale_table::fits(p.x_grad_fp8_sf) &&
             k.clamp_min >= numeric::max_e4m3 * 0x1p-126f;
      if (fast) return gpu::launch<near>(c, near::blocks(blocks), near::shared_bytes, n);
    }
    if (fast) return gpu::launch<near>(c, blocks, near::shared_bytes, n);
  }
  gpu::launch<kernel>(c, blocks, kernel::shared_bytes, k);
}

struct swiglu_backward_simt {
  static void launch(const context& c, const quant::swiglu_backward& p) {
    auto* row_grad = p.topk_weights_grad ? static_cast<float*>(p.topk_weights_grad.data) : nullptr;
    visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
      visit<float, numeric::bf16>(p.x_grad.dtype, [&](auto out) {
        launch_gradients<decltype(in), decltype(in), decltype(out)>(c, p, row_grad);
      });
    });
  }
};

struct swiglu_backward_and_per_token_cast_simt {
  static bool gathers(const quant::swiglu_backward_and_per_token_cast& p) {
    return p.topk_weights_grad.defined() && p.topk_weights_grad.rank == 2;
  }
  static std::uint64_t workspace(const portile_device_info&,
                                 const quant::swiglu_backward_and_per_token_cast& p) {
    return gathers(p) ? static_cast<std::uint64_t>(p.out_grad.extent(0)) * sizeof(float) : 0;
  }
  static void launch(const context& c, const quant::swiglu_backward_and_per_token_cast& p) {
    const tensor& grad = p.topk_weights_grad;
    auto* row_grad = gathers(p) ? static_cast<float*>(c.call.workspace)
                     : grad     ? static_cast<float*>(grad.data)
                                : nullptr;
    visit<float, numeric::bf16>(p.out_grad.dtype, [&](auto g) {
      launch_gradients<numeric::e4m3, decltype(g), numeric::bf16>(c, p, row_grad);
    });
    if (!gathers(p)) return;
    const std::int64_t count = grad.numel();
    if (count == 0) return;
    gather_grads::params k{};
    k.row_grad = row_grad;
    k.pos = static_cast<const std::int32_t*>(p.token_topk_to_pos.data);
    k.out = static_cast<float*>(grad.data);
    k.pos_stride = p.token_topk_to_pos.stride(0);
    k.pos_step = p.token_topk_to_pos.stride(1);
    k.out_stride = grad.stride(0);
    k.out_step = grad.stride(1);
    k.count = count;
    k.rows = p.out_grad.extent(0);
    k.topk = divider(grad.extent(1), count);
    k.trap = c.call.trap;
    gpu::launch<gather_grads>(c, numeric::ceil_div(count, gather_grads::threads), 0, k);
  }
};

}  // namespace

extern const portile_implementation quant_swiglu_backward_simt, quant_swiglu_backward_and_per_token_cast_simt;
const portile_implementation quant_swiglu_backward_simt =
    make_simt<quant::swiglu_backward, swiglu_backward_simt>();
const portile_implementation quant_swiglu_backward_and_per_token_cast_simt =
    make_simt<quant::swiglu_backward_and_per_token_cast, swiglu_backward_and_per_token_cast_simt>();

}  // namespace portile::gpu
