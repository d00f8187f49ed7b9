#include <portile/kernels/mhc/block_backward.hpp>
#include <portile/kernels/mhc/pre_norm_fn_backward.hpp>

#include "backends/gpu/mhc.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

/// Two channels of a row, as they lie in memory.
PORTILE_DEVICE std::uint32_t load_pair(const bf16* p, bool aligned) {
  return aligned ? load4(p) : std::uint32_t{p[0].bits} | std::uint32_t{p[1].bits} << 16;
}
PORTILE_DEVICE void store_pair(bf16* p, bool aligned, std::uint32_t pair) {
  if (aligned) return store4(p, pair);
  p[0] = {static_cast<std::uint16_t>(pair)};
  p[1] = {static_cast<std::uint16_t>(pair >> 16)};
}

struct backward_params {
  rows<const bf16> residual;
  rows<bf16> residual_grad;
  const float *fn, *norm_weight;  ///< norm_weight null: none
  std::int64_t fn_stride;
  const float*
      token_rows;  ///< [tokens, mixes + 1]: the rounded gradients of the products, that of the squares
  float* partial;  ///< [parts, mixes, mult * hidden]: merged gradients of each part of the tokens
  std::int64_t tokens, mult, hidden, mixes;
  std::int64_t part, parts;
  std::int64_t stream_blocks, mix_groups, work;
  // What residual_grad begins with: the gradient there, or those of the block (pre_mix has data), or 0.
  rows<const float> pre_mix, comb_mix;
  rows<const bf16> layer_input_grad, out_grad;  ///< out_grad without data: the head
  bool accumulate_residual, paired;
  bool streams, parameters;  ///< what this launch computes
};

/// What the kernels below have in common: a token's row in shared memory, and where its gradient begins.
struct backward_step {
  static constexpr int ahead = 4;  ///< tokens whose channels are on their way at a time
  static constexpr int most = static_cast<int>(portile::mhc::max_mult);
  static constexpr int extras = 12;  ///< of a row, after the mixes: sqrsum_grad, pre_mix, comb_mix, gap

  /// Rows of tokens t0 .. t0 + count - 1 for stream i and the mixes from j0 on, `columns` of them; zeros for
  /// what is not there.
  template <class Block>
  static PORTILE_DEVICE void bring_rows(const Block& block, const backward_params& p, std::int64_t t0,
                                        std::int64_t end, int count, std::int64_t i, std::int64_t j0,
                                        int columns, float* to) {
    const int pitch = columns + extras;
    for (int at = block.thread(); at < count * pitch; at += Block::threads) {
      const std::int64_t t = t0 + at / pitch;
      const int n = at % pitch, extra = n - columns;
      float v = 0.0f;
      if (t < end) {
        const float* const row = p.token_rows + t * (p.mixes + 1);
        if (extra < 0)
          v = j0 + n < p.mixes ? row[j0 + n] : 0.0f;
        else if (extra == 0)
          v = row[p.mixes];
        else if (p.pre_mix.data && extra == 1)
          v = p.pre_mix.at(t)[i];
        else if (p.out_grad.data && extra >= 4 && extra - 4 < p.mult)
          v = p.comb_mix.at(t, i)[extra - 4];
      }
      to[at] = v;
    }
  }

  /// The channels h, h + 1 of stream i of up to `ahead` tokens, and what their gradients begin with. `extra`
  /// is the row's after the mixes; rows are `pitch` apart.
  static PORTILE_DEVICE void begin(const backward_params& p, std::int64_t t0, std::int64_t end,
                                   std::int64_t i, std::int64_t h, const float* extra, int pitch,
                                   std::uint32_t (&r)[ahead], float (&sum)[ahead][2]) {
    PORTILE_UNROLL
    for (int u = 0; u < ahead; ++u) {
      r[u] = t0 + u < end ? load_pair(p.residual.at(t0 + u, i) + h, p.paired) : 0u;
      sum[u][0] = sum[u][1] = 0.0f;
    }
    if (!p.streams) return;
    if (p.pre_mix.data) {
      PORTILE_UNROLL
      for (int u = 0; u < ahead; ++u) {
        if (t0 + u >= end) continue;
        const std::uint32_t og = load_pair(p.layer_input_grad.at(t0 + u) + h, p.paired);
        std::uint32_t d[most];
        PORTILE_UNROLL
        for (int o = 0; o < most; ++o)
          d[o] = p.out_grad.data && o < p.mult ? load_pair(p.out_grad.at(t0 + u, o) + h, p.paired) : 0u;
        const float* const e = extra + u * pitch;
        PORTILE_UNROLL
        for (int o = 0; o < most; ++o) {
          if (!p.out_grad.data || o >= p.mult) continue;
          sum[u][0] = ::fmaf(e[4 + o], bf16_low(d[o]), sum[u][0]);
          sum[u][1] = ::fmaf(e[4 + o], bf16_high(d[o]), sum[u][1]);
        }
        sum[u][0] = ::fmaf(e[1], bf16_low(og), sum[u][0]);
        sum[u][1] = ::fmaf(e[1], bf16_high(og), sum[u][1]);
      }
    } else if (p.accumulate_residual) {
      PORTILE_UNROLL
      for (int u = 0; u < ahead; ++u) {
        if (t0 + u >= end) continue;
        const std::uint32_t old = load_pair(p.residual_grad.at(t0 + u, i) + h, p.paired);
        sum[u][0] = bf16_low(old);
        sum[u][1] = bf16_high(old);
      }
    }
  }

  static PORTILE_DEVICE void finish(const backward_params& p, std::int64_t t, std::int64_t i, std::int64_t h,
                                    std::uint32_t r, float sqrsum_grad, const float (&sum)[2]) {
    const float low = ::fmaf(2.0f * bf16_low(r), sqrsum_grad, sum[0]);
    const float high = ::fmaf(2.0f * bf16_high(r), sqrsum_grad, sum[1]);
    store_pair(p.residual_grad.at(t, i) + h, p.paired, to_bf16x2(low, high));
  }

  /// fn[j, k] as the products take it.
  static PORTILE_DEVICE float weight(const backward_params& p, std::int64_t j, std::int64_t k) {
    const float v = p.fn[j * p.fn_stride + k];
    return numeric::to_tf32_nearest(p.norm_weight ? v * p.norm_weight[k] : v);
  }
};

/// A thread walks a part of the tokens with two channels of one stream: `columns` rows of the matrix and of
/// its gradient are in registers, the residual is read once for both results.
template <int columns>
struct backward_kernel : backward_step {
  static constexpr int threads = 128, width = 2 * threads, turn = 32;
  static constexpr int pitch = columns + extras;
  static constexpr std::size_t shared_bytes = std::size_t{turn} * pitch * sizeof(float);
  using params = backward_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    float* const token_rows = block.template shared<float>();
    for (std::int64_t work = block.index(); work < p.work; work += block.grid()) {
      std::int64_t rest = work / p.stream_blocks;
      const std::int64_t h = (work - rest * p.stream_blocks) * width + 2 * block.thread();
      const std::int64_t i = rest % p.mult;
      rest /= p.mult;
      const std::int64_t j0 = rest % p.mix_groups * columns, part = rest / p.mix_groups;
      const std::int64_t k = i * p.hidden + h;
      const std::int64_t end = (part + 1) * p.part < p.tokens ? (part + 1) * p.part : p.tokens;

      float f[columns][2], merged[columns][2];
      PORTILE_UNROLL
      for (int c = 0; c < columns; ++c) {
        const bool there = p.streams && h < p.hidden && j0 + c < p.mixes;
        f[c][0] = there ? weight(p, j0 + c, k) : 0.0f;
        f[c][1] = there ? weight(p, j0 + c, k + 1) : 0.0f;
        merged[c][0] = merged[c][1] = 0.0f;
      }
      for (std::int64_t t0 = part * p.part; t0 < end; t0 += turn) {
        bring_rows(block, p, t0, end, turn, i, j0, columns, token_rows);
        block.barrier();
        for (int first = 0; first < turn && t0 + first < end && h < p.hidden; first += ahead) {
          const float* const row = token_rows + first * pitch;
          std::uint32_t r[ahead];
          float sum[ahead][2];
          begin(p, t0 + first, end, i, h, row + columns, pitch, r, sum);
          PORTILE_UNROLL
          for (int u = 0; u < ahead; ++u) {
            if (t0 + first + u >= end) continue;
            const float low = bf16_low(r[u]), high = bf16_high(r[u]);
            PORTILE_UNROLL
            for (int c = 0; c < columns; c += 4) {
              float grad[4];
              load_values<float, 4>(row + u * pitch, c, grad);
              PORTILE_UNROLL
              for (int n = 0; n < 4; ++n) {
                sum[u][0] = ::fmaf(grad[n], f[c + n][0], sum[u][0]);
                sum[u][1] = ::fmaf(grad[n], f[c + n][1], sum[u][1]);
                merged[c + n][0] = ::fmaf(grad[n], low, merged[c + n][0]);
                merged[c + n][1] = ::fmaf(grad[n], high, merged[c + n][1]);
              }
            }
            if (p.streams) finish(p, t0 + first + u, i, h, r[u], row[u * pitch + columns], sum[u]);
          }
        }
        block.barrier();
      }
      if (!p.parameters || h >= p.hidden) continue;
      PORTILE_UNROLL
      for (int c = 0; c < columns; ++c) {
        if (j0 + c >= p.mixes) continue;
        float* const to = p.partial + (part * p.mixes + j0 + c) * p.mult * p.hidden + k;
        to[0] = merged[c][0];
        to[1] = merged[c][1];
      }
    }
  }
};

/// The gradient of the residual for more mixes than registers hold: the matrix's columns lie in shared
/// memory.
struct wide_backward_kernel : backward_step {
  static constexpr int threads = 64, width = 2 * threads, turn = 16;
  using params = backward_params;

  static int pitch(std::int64_t mixes) { return static_cast<int>(mixes) + extras; }
  static std::size_t shared_bytes(std::int64_t mixes) {
    return (static_cast<std::size_t>(mixes) * width + std::size_t{turn} * pitch(mixes)) * sizeof(float);
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const int mixes = static_cast<int>(p.mixes), row_pitch = mixes + extras;
    float* const matrix = block.template shared<float>();
    float* const token_rows = matrix + mixes * width;
    const float* const mine = matrix + 2 * block.thread();
    for (std::int64_t work = block.index(); work < p.work; work += block.grid()) {
      std::int64_t rest = work / p.stream_blocks;
      const std::int64_t h0 = (work - rest * p.stream_blocks) * width, h = h0 + 2 * block.thread();
      const std::int64_t i = rest % p.mult, part = rest / p.mult;
      const std::int64_t end = (part + 1) * p.part < p.tokens ? (part + 1) * p.part : p.tokens;
      for (int at = block.thread(); at < mixes * width; at += threads) {
        const std::int64_t column = h0 + at % width;
        matrix[at] = column < p.hidden ? weight(p, at / width, i * p.hidden + column) : 0.0f;
      }
      for (std::int64_t t0 = part * p.part; t0 < end; t0 += turn) {
        bring_rows(block, p, t0, end, turn, i, 0, mixes, token_rows);
        block.barrier();
        for (int first = 0; first < turn && t0 + first < end && h < p.hidden; first += ahead) {
          const float* const row = token_rows + first * row_pitch;
          std::uint32_t r[ahead];
          float sum[ahead][2];
          begin(p, t0 + first, end, i, h, row + mixes, row_pitch, r, sum);
          for (int j = 0; j < mixes; ++j) {
            const words2 f = load8(mine + j * width);
            PORTILE_UNROLL
            for (int u = 0; u < ahead; ++u) {
              const float grad = row[u * row_pitch + j];
              sum[u][0] = ::fmaf(grad, numeric::bits_float(f.w[0]), sum[u][0]);
              sum[u][1] = ::fmaf(grad, numeric::bits_float(f.w[1]), sum[u][1]);
            }
          }
          PORTILE_UNROLL
          for (int u = 0; u < ahead; ++u)
            if (t0 + first + u < end)
              finish(p, t0 + first + u, i, h, r[u], row[u * row_pitch + mixes], sum[u]);
        }
        block.barrier();
      }
    }
  }
};

/// Adds the parts in order: into part 0, or as fn's gradient where that is all that is wanted.
struct merged_total_kernel {
  static constexpr int threads = 256;
  struct params {
    float* partial;
    std::int64_t parts, mixes, channels;
    divider row;
    merge_gradients to;
    bool direct;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t size = p.mixes * p.channels;
    for (std::int64_t at = block.index() * threads + block.thread(); at < size;
         at += block.grid() * threads) {
      const std::int64_t j = p.row.quotient(at), k = at - j * p.channels;
      const float sum = ordered_sum(p.partial + at, size, p.parts);
      if (p.direct) {
        float& to = p.to.fn_grad[j * p.to.fn_grad_stride + k];
        to = ::fmaf(sum, p.to.norm_weight ? p.to.norm_weight[k] : 1.0f, p.to.accumulate ? to : 0.0f);
      } else {
        p.partial[at] = sum;
      }
    }
  }
};

/// Tokens of a part: at least 128, and at most eight parts.
std::int64_t part_of(std::int64_t tokens) {
  return std::max<std::int64_t>(128, numeric::ceil_div(tokens, 8));
}

/// Floats of the workspace: the tokens' rows, then the partial gradients; one part also without tokens.
std::int64_t row_floats(std::int64_t tokens, std::int64_t mixes) {
  return numeric::align_up(tokens * (mixes + 1), 64);
}
std::uint64_t workspace_of(std::int64_t tokens, const tensor& fn, bool parameters) {
  const std::int64_t parts = std::max<std::int64_t>(1, numeric::ceil_div(tokens, part_of(tokens)));
  return static_cast<std::uint64_t>(row_floats(tokens, fn.extent(0)) +
                                    (parameters ? parts * fn.extent(0) * fn.extent(1) : 0)) *
         sizeof(float);
}

template <class Kernel>
void start_kernel(const context& c, backward_params q, std::int64_t mix_groups, std::size_t shared_bytes) {
  q.stream_blocks = numeric::ceil_div(q.hidden, Kernel::width);
  q.mix_groups = mix_groups;
  q.work = q.stream_blocks * q.mult * q.mix_groups * q.parts;
  gpu::launch<Kernel>(c, q.work, shared_bytes, q);
}

/// P is mhc.pre_norm_fn_backward or mhc.block_backward; `grad` that of the mixing logits. `q` knows where
/// residual_grad begins and whether everything has pairs of channels at multiples of 4 bytes.
template <class P>
void start_backward(const context& c, const P& p, const tensor& grad, backward_params q) {
  const merge_gradients to(p.fn_grad, p.norm_weight_grad, p.fn, p.norm_weight, p.accumulate);
  const std::int64_t channels = p.fn.extent(1);
  q.residual = rows<const bf16>(p.residual);
  q.residual_grad = rows<bf16>(p.residual_grad);
  q.fn = to.fn;
  q.norm_weight = to.norm_weight;
  q.fn_stride = to.fn_stride;
  q.tokens = p.residual.extent(0);
  q.mult = p.residual.extent(1);
  q.hidden = p.residual.extent(2);
  q.mixes = p.fn.extent(0);
  q.part = part_of(q.tokens);
  q.parts = numeric::ceil_div(q.tokens, q.part);
  q.paired = q.paired && whole_chunks(p.residual, 4) && whole_chunks(p.residual_grad, 4);
  q.parameters = to.fn_grad || to.norm_weight_grad;
  q.streams = true;
  float* const memory = static_cast<float*>(c.call.workspace);
  q.token_rows = memory;
  q.partial = memory ? memory + row_floats(q.tokens, q.mixes) : nullptr;

  const std::int64_t pitch = q.mixes + 1;
  launch_rmsnorm_backward(c, grad, rows<const float>(p.out_mul),
                          rows<const float>(static_cast<const float*>(p.sqrsum.data), 1, 0), 1,
                          static_cast<float>(channels), static_cast<float>(p.norm_eps), true,
                          rows<float>(memory, pitch, 0),
                          rows<float>(memory ? memory + q.mixes : nullptr, pitch, 0));
  if (q.mixes <= 8) {
    start_kernel<backward_kernel<8>>(c, q, 1, backward_kernel<8>::shared_bytes);
  } else if (q.mixes <= 24) {
    start_kernel<backward_kernel<24>>(c, q, 1, backward_kernel<24>::shared_bytes);
  } else {
    start_kernel<wide_backward_kernel>(c, q, 1, wide_backward_kernel::shared_bytes(q.mixes));
    q.streams = false;
    if (q.parameters)
      start_kernel<backward_kernel<24>>(c, q, numeric::ceil_div(q.mixes, 24),
                                        backward_kernel<24>::shared_bytes);
  }
  if (!q.parameters) return;
  const bool direct = !to.norm_weight_grad;
  const merged_total_kernel::params total{
      q.partial, q.parts, q.mixes, channels, divider(channels, q.mixes * channels), to, direct};
  gpu::launch<merged_total_kernel>(c, numeric::ceil_div(q.mixes * channels, merged_total_kernel::threads), 0,
                                   total);
  if (!direct) launch_merge_backward(c, rows<const float>(q.partial, channels, 0), channels, to);
}

struct pre_norm_fn_backward_simt {
  static std::uint64_t workspace(const portile_device_info&, const mhc::pre_norm_fn_backward& p) {
    return workspace_of(p.residual.extent(0), p.fn, true);
  }
  static void launch(const context& c, const mhc::pre_norm_fn_backward& p) {
    backward_params q{};
    q.accumulate_residual = p.accumulate_residual;
    q.paired = true;
    start_backward(c, p, p.out_grad, q);
  }
};

struct block_backward_simt {
  static std::uint64_t workspace(const portile_device_info&, const mhc::block_backward& p) {
    return workspace_of(p.residual.extent(0), p.fn, p.fn_grad || p.norm_weight_grad);
  }
  static void launch(const context& c, const mhc::block_backward& p) {
    backward_params q{};
    q.pre_mix = rows<const float>(p.pre_mix);
    q.layer_input_grad = rows<const bf16>(p.layer_input_grad);
    if (p.out_grad) {
      q.out_grad = rows<const bf16>(p.out_grad);
      q.comb_mix = rows<const float>(p.comb_mix);
    }
    q.paired = whole_chunks(p.layer_input_grad, 4) && whole_chunks(p.out_grad, 4);
    start_backward(c, p, p.mixes_grad, q);
  }
};

}  // namespace

extern const portile_implementation mhc_pre_norm_fn_backward_simt;
const portile_implementation mhc_pre_norm_fn_backward_simt =
    make_simt<mhc::pre_norm_fn_backward, pre_norm_fn_backward_simt>();
extern const portile_implementation mhc_block_backward_simt;
const portile_implementation mhc_block_backward_simt = make_simt<mhc::block_backward, block_backward_simt>();

}  // namespace portile::gpu
