#include <portile/kernels/mhc/block_backward.hpp>
#include <portile/kernels/mhc/pre_norm_fn_backward.hpp>

#include "backends/gpu/mhc.hpp"
#include "backends/gpu/reduce.hpp"

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
  const float* fragments;  ///< the same for the matrix unit (fragments_kernel)
  float* partial;          ///< [parts, mixes, mult * hidden]: merged gradients of each part of the tokens
  std::int64_t tokens, mult, hidden, mixes;
  std::int64_t part, parts;
  std::int64_t work;
  divider stream_blocks, streams_in, groups_in;  ///< blocks of a stream, of a token's streams, of a part
  // What residual_grad begins with: the gradient there, or those of the block (pre_mix has data), or 0.
  rows<const float> pre_mix, comb_mix;
  rows<const bf16> layer_input_grad, out_grad;  ///< out_grad without data: the head
  bool accumulate_residual, paired, aligned;
  bool streams, parameters;  ///< what this launch computes
};

/// What a block does in a turn: channels of a stream, mixes, tokens.
struct work_place {
  std::int64_t block, stream, mix_group, part;

  PORTILE_DEVICE work_place(const backward_params& p, std::int64_t work) {
    const std::int64_t a = p.stream_blocks.quotient(work), b = p.streams_in.quotient(a);
    block = work - a * p.stream_blocks.value();
    stream = a - b * p.streams_in.value();
    part = p.groups_in.quotient(b);
    mix_group = b - part * p.groups_in.value();
  }
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
  static constexpr int min_blocks = columns > 8 ? 3 : 4;
  static constexpr int pitch = columns + extras;
  static constexpr std::size_t shared_bytes = std::size_t{turn} * pitch * sizeof(float);
  using params = backward_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    float* const token_rows = block.template shared<float>();
    for (std::int64_t work = block.index(); work < p.work; work += block.grid()) {
      const work_place at(p, work);
      const std::int64_t h = at.block * width + 2 * block.thread(), i = at.stream, part = at.part;
      const std::int64_t j0 = at.mix_group * columns;
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
  static constexpr int min_blocks = 4;
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
      const work_place place(p, work);
      const std::int64_t h0 = place.block * width, h = h0 + 2 * block.thread();
      const std::int64_t i = place.stream, part = place.part;
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

/// How the matrix unit takes sixteen tokens' rounded gradients of the products, mg. With g = lane / 4,
/// q = lane % 4 and o an octet of mixes, a lane's words are, in this order,
///   for the streams, [half of the tokens][o][b]: mg[8 * half + g, 8 * o + q + 4 * b]
///   for the parameters, [half][o][b]: mg[8 * half + 2 * q + b, 8 * o + g]
///   sqrsum_grad of the tokens 2q, 2q + 1, 2q + 8, 2q + 9
template <int octets>
struct fragments {
  static constexpr int tokens = 16, lanes = 32;
  static constexpr int pieces = 2 * octets + 1;  ///< of 16 bytes; they lie [piece][lane]
  static constexpr int words = pieces * lanes * 4;
};

/// Where the backward pass begins: what mhc.reduce_partials_and_rmsnorm_backward computes, as fragments,
/// zeros after the last token. Eight lanes take a token.
template <int octets>
struct fragments_kernel {
  using shape = fragments<octets>;
  static constexpr int threads = 128, lanes = threads / shape::tokens, pitch = 8 * octets + 1;
  static constexpr std::size_t shared_bytes = (pitch + 1) * shape::tokens * sizeof(float);
  struct params {
    rows<const float> out_grad, out_mul;
    const float* sqrsum;
    std::int64_t tokens, mixes, tiles;
    float size, eps;
    float* to;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    float* const mg = block.template shared<float>();
    float* const sqrsum_grad = mg + shape::tokens * pitch;
    const int token = block.thread() / lanes, lane = block.thread() % lanes;
    for (std::int64_t tile = block.index(); tile < p.tiles; tile += block.grid()) {
      const std::int64_t t = tile * shape::tokens + token;
      const bool live = t < p.tokens;
      float grad[octets], mul[octets];
      PORTILE_UNROLL
      for (int o = 0; o < octets; ++o) {
        const bool there = live && 8 * o + lane < p.mixes;
        grad[o] = there ? p.out_grad.at(t)[8 * o + lane] : 0.0f;
        mul[o] = there ? p.out_mul.at(t)[8 * o + lane] : 0.0f;
      }
      const float sqrsum = live ? p.sqrsum[t] : 1.0f;
      const float r = rms_rstd(sqrsum, p.size, p.eps);
      double r_grad = 0;
      PORTILE_UNROLL
      for (int o = 0; o < octets; ++o) {
        const bool there = live && 8 * o + lane < p.mixes;
        r_grad += static_cast<double>(grad[o]) * mul[o];
        mg[token * pitch + 8 * o + lane] = there ? tf32_factor(grad[o] * r) : 0.0f;
      }
      r_grad = reduce_lanes(block, r_grad, lanes, plus{});
      if (lane == 0)
        sqrsum_grad[token] =
            live ? sqrsum_gradient(static_cast<float>(r_grad), r, sqrsum, p.size, p.eps) : 0.0f;
      block.barrier();
      for (int at = block.thread(); at < shape::pieces * shape::lanes; at += threads) {
        const int g = at % shape::lanes / 4, q = at % 4, first = at / shape::lanes * 4;
        float v[4];
        PORTILE_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int word = (first + e) % (4 * octets), b = word % 2, o = word / 2 % octets;
          const int half = word / (2 * octets);
          if (first >= 8 * octets)
            v[e] = sqrsum_grad[e / 2 * 8 + 2 * q + e % 2];
          else if (first < 4 * octets)
            v[e] = mg[(8 * half + g) * pitch + 8 * o + q + 4 * b];
          else
            v[e] = mg[(8 * half + 2 * q + b) * pitch + 8 * o + g];
        }
        store_values<float, 4>(p.to + tile * shape::words + at * 4, 0, v);
      }
      block.barrier();
    }
  }
};

/// Both products on the matrix unit, the residual read once. A wave walks a part of the tokens, sixteen a
/// turn, with 64 channels of a stream: a lane has eight of them, 16 bytes, of two tokens in each half of the
/// turn. Channels 8g + 2n and 8g + 2n + 1 are rows g and g + 8 of tile n, so that what a lane loads,
/// multiplies and stores is its own throughout.
template <int octets, bool whole_block>
struct matrix_backward_kernel : backward_step {
  using shape = fragments<octets>;
  static constexpr int threads = 128, wave_width = 64, width = threads / 32 * wave_width;
  static constexpr int min_blocks = 3;
  static constexpr int tiles = chunk / 2;
  /// Halves of a turn at a time: more loads are on their way, or more of mhc.block_backward's for a half.
  static constexpr int halves = whole_block ? 1 : 2, own = 2 * halves;
  /// The lane's factors from fn: [tile][octet][16 bytes], read by no other lane.
  static constexpr std::size_t shared_bytes = std::size_t{tiles} * octets * threads * 16;
  using params = backward_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    if constexpr (Block::has_mma_tf32) {
      float* const factors = block.template shared<float>() + block.thread() * 4;
      const int g = block.lane() / 4, q = block.lane() % 4;
      for (std::int64_t work = block.index(); work < p.work; work += block.grid()) {
        const work_place at(p, work);
        const int h = static_cast<int>(at.block) * width + block.wave() * wave_width + g * chunk;
        const int stream = static_cast<int>(at.stream), part = static_cast<int>(at.part);
        const bool live = h < p.hidden;
        const std::int64_t first = part * p.part;
        const std::int64_t end = first + p.part < p.tokens ? first + p.part : p.tokens;
        bring_factors(p, live, q, stream * p.hidden + h, factors);

        float merged[tiles][octets][4] = {};
        for (std::int64_t t = first; t < end; t += shape::tokens) {
          const float* const fragment = p.fragments + t / shape::tokens * shape::words + block.lane() * 4;
          const int left = end - t < shape::tokens ? static_cast<int>(end - t) : shape::tokens;
          PORTILE_UNROLL
          for (int half = 0; half < 2; half += halves)
            take(block, p, {t, stream, h, live ? left : 0, q, half}, fragment, factors, merged);
        }
        if (p.parameters && live) store_merged(p, part, stream * p.hidden + h, q, merged);
      }
    }
  }

  /// A lane's share: channels h .. h + 7 of a stream, and `own` of the turn's tokens where there are as many.
  struct lane_place {
    std::int64_t t;
    int stream, h, count, q, half;  ///< count: tokens of the turn, 0 for a lane without channels

    PORTILE_DEVICE int place(int u) const { return (half + u / 2) * 8 + 2 * q + u % 2; }
    PORTILE_DEVICE std::int64_t token(int u) const { return t + place(u); }
    PORTILE_DEVICE bool has(int u) const { return place(u) < count; }
  };

  /// fn of the lane's channels as the products take it, of rows 8 * o + q and 8 * o + q + 4.
  static PORTILE_DEVICE void bring_factors(const params& p, bool live, int q, std::int64_t k, float* to) {
    float weight[chunk] = {};
    if (live && p.norm_weight) load_values<float, chunk>(p.norm_weight, k, weight);
    PORTILE_UNROLL
    for (int o = 0; o < octets; ++o) {
      float v[2][chunk] = {};
      PORTILE_UNROLL
      for (int b = 0; b < 2; ++b) {
        const int j = 8 * o + q + 4 * b;
        if (!live || j >= p.mixes) continue;
        load_values<float, chunk>(p.fn + j * p.fn_stride, k, v[b]);
        PORTILE_UNROLL
        for (int e = 0; e < chunk; ++e) v[b][e] = tf32_factor(p.norm_weight ? v[b][e] * weight[e] : v[b][e]);
      }
      PORTILE_UNROLL
      for (int n = 0; n < tiles; ++n) {
        const float piece[4] = {v[0][2 * n], v[0][2 * n + 1], v[1][2 * n], v[1][2 * n + 1]};
        store_values<float, 4>(to + (n * octets + o) * threads * 4, 0, piece);
      }
    }
  }

  template <class Block>
  static PORTILE_DEVICE void take(const Block& block, const params& p, const lane_place& lane,
                                  const float* fragment, const float* factors,
                                  float (&merged)[tiles][octets][4]) {
    words4 r[own];
    load_rows(p.residual, lane, r);
    if constexpr (whole_block) {
      float sum[own][chunk];
      gradients_of_block(p, lane, sum);
      if (p.parameters) add_parameters(block, lane, r, fragment, merged);
      finish_streams(
          block, p, lane, r, [&](int u, int e) { return sum[u][e]; }, fragment, factors);
    } else {
      words4 old[own] = {};
      if (p.accumulate_residual) load_rows(p.residual_grad, lane, old);
      if (p.parameters) add_parameters(block, lane, r, fragment, merged);
      finish_streams(
          block, p, lane, r, [&](int u, int e) { return lane_value(old[u], e); }, fragment, factors);
    }
  }

  template <class T>
  static PORTILE_DEVICE void load_rows(const rows<T>& from, const lane_place& lane, words4 (&w)[own]) {
    PORTILE_UNROLL
    for (int u = 0; u < own; ++u) {
      w[u] = words4{};
      if (lane.has(u)) w[u] = load16(from.at(lane.token(u), lane.stream) + lane.h);
    }
  }
  /// What the gradients of the streams begin with in mhc.block_backward.
  static PORTILE_DEVICE void gradients_of_block(const params& p, const lane_place& lane,
                                                float (&sum)[own][chunk]) {
    words4 og[own];
    load_rows(p.layer_input_grad, lane, og);  // it has no streams: their stride is 0
    float pre[own];
    PORTILE_UNROLL
    for (int u = 0; u < own; ++u) {
      pre[u] = lane.has(u) ? p.pre_mix.at(lane.token(u))[lane.stream] : 0.0f;
      PORTILE_UNROLL
      for (int e = 0; e < chunk; ++e) sum[u][e] = 0.0f;
    }
    PORTILE_NO_UNROLL
    for (int o = 0; p.out_grad.data && o < p.mult; o += ahead) {
      words4 w[ahead][own];
      float comb[ahead][own];
      PORTILE_UNROLL
      for (int i = 0; i < ahead; ++i) {
        const int count = o + i < p.mult ? lane.count : 0;
        load_rows(p.out_grad, {lane.t, o + i, lane.h, count, lane.q, lane.half}, w[i]);
        PORTILE_UNROLL
        for (int u = 0; u < own; ++u)
          comb[i][u] = lane.place(u) < count ? p.comb_mix.at(lane.token(u), lane.stream)[o + i] : 0.0f;
      }
      PORTILE_UNROLL
      for (int i = 0; i < ahead; ++i) {
        if (o + i >= p.mult) continue;
        PORTILE_UNROLL
        for (int u = 0; u < own; ++u) add_scaled(comb[i][u], w[i][u], sum[u]);
      }
    }
    PORTILE_UNROLL
    for (int u = 0; u < own; ++u) add_scaled(pre[u], og[u], sum[u]);
  }

  /// Words of a half from word `first` of its kind on.
  template <int count>
  static PORTILE_DEVICE void load_fragment(const float* fragment, int first, float (&v)[count]) {
    PORTILE_UNROLL
    for (int i = 0; i < count; i += 2) {
      const words2 w = load8(fragment + (first + i) / 4 * shape::lanes * 4 + (first + i) % 4);
      v[i] = numeric::bits_float(w.w[0]);
      v[i + 1] = numeric::bits_float(w.w[1]);
    }
  }

  /// merged += residual^T * mg: rows are channels, columns mixes.
  template <class Block>
  static PORTILE_DEVICE void add_parameters(const Block& block, const lane_place& lane,
                                            const words4 (&r)[own], const float* fragment,
                                            float (&merged)[tiles][octets][4]) {
    PORTILE_UNROLL
    for (int i = 0; i < halves; ++i) {
      float mg[2 * octets];
      load_fragment(fragment, (2 + lane.half + i) * 2 * octets, mg);
      const words4 &even = r[2 * i], &odd = r[2 * i + 1];
      PORTILE_UNROLL
      for (int n = 0; n < tiles; ++n) {
        const float a[4] = {lane_value(even, 2 * n), lane_value(even, 2 * n + 1), lane_value(odd, 2 * n),
                            lane_value(odd, 2 * n + 1)};
        PORTILE_UNROLL
        for (int o = 0; o < octets; ++o) block.mma_tf32_16x8x8(merged[n][o], a, {mg[2 * o], mg[2 * o + 1]});
      }
    }
  }

  /// Adds fn^T * mg^T, whose rows are channels and columns tokens, and what comes through the squares to
  /// `before`, and stores the streams' gradients.
  template <class Block, class F>
  static PORTILE_DEVICE void finish_streams(const Block& block, const params& p, const lane_place& lane,
                                            const words4 (&r)[own], F before, const float* fragment,
                                            const float* factors) {
    float mg[2 * octets * halves], sqrsum_grad[own];
    load_fragment(fragment, lane.half * 2 * octets, mg);
    load_fragment(fragment, 8 * octets + 2 * lane.half, sqrsum_grad);
    words4 to[own];
    PORTILE_UNROLL
    for (int n = 0; n < tiles; ++n) {
      block.wave_barrier();  // else the factors of all tiles would be loaded first, for want of registers
      float a[octets][4];
      PORTILE_UNROLL
      for (int o = 0; o < octets; ++o) load_values<float, 4>(factors, (n * octets + o) * threads * 4, a[o]);
      PORTILE_UNROLL
      for (int i = 0; i < halves; ++i) {
        const int even = 2 * i, odd = even + 1;
        float d[4] = {before(even, 2 * n), before(odd, 2 * n), before(even, 2 * n + 1),
                      before(odd, 2 * n + 1)};
        PORTILE_UNROLL
        for (int o = 0; o < octets; ++o) {
          const float* const b = mg + (i * octets + o) * 2;
          block.mma_tf32_16x8x8(d, a[o], {b[0], b[1]});
        }
        PORTILE_UNROLL
        for (int b = 0; b < 2; ++b) {
          const int u = even + b;
          const float low = ::fmaf(2.0f * lane_value(r[u], 2 * n), sqrsum_grad[u], d[b]);
          const float high = ::fmaf(2.0f * lane_value(r[u], 2 * n + 1), sqrsum_grad[u], d[2 + b]);
          to[u].w[n] = to_bf16x2(low, high);
        }
      }
    }
    PORTILE_UNROLL
    for (int u = 0; u < own; ++u)
      if (lane.has(u)) store16(p.residual_grad.at(lane.token(u), lane.stream) + lane.h, to[u]);
  }

  static PORTILE_DEVICE void store_merged(const params& p, std::int64_t part, std::int64_t k, int q,
                                          const float (&merged)[tiles][octets][4]) {
    PORTILE_UNROLL
    for (int o = 0; o < octets; ++o) {
      PORTILE_UNROLL
      for (int b = 0; b < 2; ++b) {
        const int j = 8 * o + 2 * q + b;
        if (j >= p.mixes) continue;
        float v[chunk];
        PORTILE_UNROLL
        for (int e = 0; e < chunk; ++e) v[e] = merged[e / 2][o][e % 2 * 2 + b];
        store_values<float, chunk>(p.partial + (part * p.mixes + j) * p.mult * p.hidden + k, 0, v);
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

/// Tokens of a part, a multiple of those of a turn: each part leaves gradients of all parameters. 200,704
/// channels in all parts together fill the large devices twice; fewer than 176 tokens are not worth it.
std::int64_t part_of(std::int64_t tokens, std::int64_t channels) {
  const std::int64_t parts = std::clamp<std::int64_t>(200704 / channels, 1, 32);
  return numeric::align_up(std::max<std::int64_t>(176, numeric::ceil_div(tokens, parts)), 16);
}

/// Floats of the workspace: the tokens' rows or fragments, then the partial gradients; one part also without
/// tokens.
std::int64_t row_floats(std::int64_t tokens, std::int64_t mixes) {
  const std::int64_t fragment = mixes <= 8 ? fragments<1>::words : mixes <= 24 ? fragments<3>::words : 0;
  return std::max(numeric::align_up(tokens * (mixes + 1), 64), numeric::ceil_div(tokens, 16) * fragment);
}
std::uint64_t workspace_of(std::int64_t tokens, const tensor& fn, bool parameters) {
  const std::int64_t parts =
      std::max<std::int64_t>(1, numeric::ceil_div(tokens, part_of(tokens, fn.extent(1))));
  return static_cast<std::uint64_t>(row_floats(tokens, fn.extent(0)) +
                                    (parameters ? parts * fn.extent(0) * fn.extent(1) : 0)) *
         sizeof(float);
}

template <class Kernel>
void start_kernel(const context& c, backward_params q, std::int64_t mix_groups, std::size_t shared_bytes) {
  const std::int64_t stream_blocks = numeric::ceil_div(q.hidden, Kernel::width);
  q.work = stream_blocks * q.mult * mix_groups * q.parts;
  q.stream_blocks = divider(stream_blocks, q.work);
  q.streams_in = divider(q.mult, q.work);
  q.groups_in = divider(mix_groups, q.work);
  gpu::launch<Kernel>(c, q.work, shared_bytes, q);
}

/// By multiply-adds: any number of mixes, any alignment.
template <class P>
void start_kernels(const context& c, const P& p, const tensor& grad, backward_params q) {
  const std::int64_t pitch = q.mixes + 1;
  float* const memory = static_cast<float*>(c.call.workspace);
  q.token_rows = memory;
  launch_rmsnorm_backward(c, grad, rows<const float>(p.out_mul),
                          rows<const float>(static_cast<const float*>(p.sqrsum.data), 1, 0), 1,
                          static_cast<float>(p.fn.extent(1)), static_cast<float>(p.norm_eps), true,
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
}

template <int octets, class P>
void start_matrix_kernels(const context& c, const P& p, const tensor& grad, backward_params q) {
  using first = fragments_kernel<octets>;
  float* const memory = static_cast<float*>(c.call.workspace);
  q.fragments = memory;
  const std::int64_t tiles = numeric::ceil_div(q.tokens, fragments<octets>::tokens);
  const typename first::params f{rows<const float>(grad),
                                 rows<const float>(p.out_mul),
                                 static_cast<const float*>(p.sqrsum.data),
                                 q.tokens,
                                 q.mixes,
                                 tiles,
                                 static_cast<float>(p.fn.extent(1)),
                                 static_cast<float>(p.norm_eps),
                                 memory};
  gpu::launch<first>(c, tiles, first::shared_bytes, f);
  using kernel = matrix_backward_kernel<octets, std::is_same_v<P, mhc::block_backward>>;
  start_kernel<kernel>(c, q, 1, kernel::shared_bytes);
}

/// P is mhc.pre_norm_fn_backward or mhc.block_backward; `grad` that of the mixing logits. `q` knows where
/// residual_grad begins and whether what that takes has pairs of channels at multiples of 4 bytes, and chunks
/// of 16.
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
  q.part = part_of(q.tokens, channels);
  q.parts = numeric::ceil_div(q.tokens, q.part);
  q.paired = q.paired && whole_chunks(p.residual, 4) && whole_chunks(p.residual_grad, 4);
  q.parameters = to.fn_grad || to.norm_weight_grad;
  q.streams = true;
  float* const memory = static_cast<float*>(c.call.workspace);
  q.partial = memory ? memory + row_floats(q.tokens, q.mixes) : nullptr;

  const bool on_matrix_unit = has_mma_tf32(*c.call.device) && q.mixes <= 24 && q.aligned &&
                              whole_chunks(p.residual) && whole_chunks(p.residual_grad) &&
                              whole_chunks(p.fn) && whole_chunks(p.norm_weight);
  if (on_matrix_unit) {
    if (q.mixes <= 8)
      start_matrix_kernels<1>(c, p, grad, q);
    else
      start_matrix_kernels<3>(c, p, grad, q);
  } else {
    start_kernels(c, p, grad, q);
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
    q.paired = q.aligned = true;
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
    q.aligned = whole_chunks(p.layer_input_grad) && whole_chunks(p.out_grad);
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
