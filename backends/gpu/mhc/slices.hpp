#pragma once
// From the residual streams to a layer's input in one pass, for four streams: sixteen blocks of a cluster own
// a sixteenth of the channels each, of all streams. A block keeps its slice of the matrix in registers, as
// pairs of bf16 whose sum is the tf32 value, and streams tiles of sixteen tokens through shared memory: the
// products of its slice, their sum over the cluster, the mixes, and the weighted streams of the tile that is
// still there.
#include "backends/gpu/cluster.hpp"
#include "backends/gpu/mhc.hpp"
#include "backends/gpu/mhc/mixes.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu::mhc_steps {

struct slices_params {
  rows<const bf16> residual;
  const float* fn;
  std::int64_t fn_stride, hidden, tiles;
  mixes_params
      mixes;  ///< its `from`: where a block that is alone stores its sums, with a split for each slice
  rows<bf16> out;
  float* kept;  ///< [tokens, slices_kept]: sums of a cluster's tokens until the mixes are computed
  int slice;    ///< channels of a stream that a block owns
  narrow_divider stream_units;
  bool aligned, fn_aligned;
};
inline constexpr int slices_kept = 21;

/// `clustered`: the whole way. Else blocks are alone and store the sums of a slice: the same bits where no
/// cluster may run. `full`: a block has as many channels as fit.
template <bool clustered, bool full>
struct slices_kernel {
  static constexpr int threads = 256, waves = threads / 32, cluster = 16, min_blocks = 1;
  static constexpr int streams = 4, mixes = 24, tile = 16, steps = 7, buffers = clustered ? 3 : 1;
  static constexpr int max_slice = steps * waves * 32 / streams;
  using params = slices_params;

  // Sums of a wave: a row of tokens for each mix, in steps that lie in other banks, then the squares.
  static constexpr int sum_pitch = 24, wave_sums = mixes * sum_pitch + tile;
  static constexpr int values = (mixes + 1) * tile, sent = (streams + 1) * tile, owned = mixes - streams;
  // Shared memory: sums of the waves and of the block; those of the slices for all tokens' pre mixes and for
  // the rest of the block's own token; the weights; the tiles.
  static constexpr int total_at = waves * wave_sums, received_at = total_at + values;
  static constexpr int owned_at = received_at + 2 * cluster * sent,
                       weights_at = owned_at + 2 * cluster * owned;
  static constexpr int boxes_at = weights_at + 2 * tile * streams, end_at = (boxes_at + 4 + 31) / 32 * 32;
  static_assert(boxes_at % 2 == 0);
  static constexpr std::size_t tiles_at = std::size_t{end_at} * sizeof(float);

  static std::size_t shared_bytes(int slice) {
    return tiles_at + std::size_t{buffers} * tile * pitch_of(slice) * sizeof(bf16);
  }
  /// Of a token in a tile; its chunks change places where the token is odd, so that neighbouring tokens are
  /// in other banks.
  static PORTILE_DEVICE constexpr int pitch_of(int slice) { return (streams * slice + 63) / 64 * 64; }
  static PORTILE_DEVICE int chunk_at(int token, int unit) { return (unit ^ (token % 2 * 4)) * chunk; }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    if constexpr (Block::has_mma_tf32) {
      if constexpr (clustered)
        run_cluster(block, p);
      else
        run_alone(block, p);
    }
  }

  /// The lane's values of the matrix: [step][eight mixes][high parts of eight channels, low parts].
  struct matrix {
    std::uint32_t w[steps][3][8];
  };
  struct range {
    int step0, count;
  };
  template <class Block>
  static PORTILE_DEVICE range range_of(const Block& block, const params& p) {
    if constexpr (full) return {block.wave() * steps, steps};
    const int all = p.slice / chunk, step0 = block.wave() * all / waves;
    return {step0, (block.wave() + 1) * all / waves - step0};
  }

  template <class Block>
  static PORTILE_DEVICE void load_matrix(const Block& block, const params& p, int rank, matrix& m) {
    const int g = block.lane() / 4, q = block.lane() % 4;
    const range mine = range_of(block, p);
    PORTILE_UNROLL
    for (int i = 0; i < steps; ++i) {
      if (!full && i >= mine.count) continue;
      const auto unit = static_cast<std::uint32_t>((mine.step0 + i) * 4 + q);
      const std::uint32_t stream = p.stream_units.quotient(unit);
      const std::int64_t k =
          stream * p.hidden + rank * p.slice + (unit - stream * p.stream_units.value()) * chunk;
      PORTILE_UNROLL
      for (int n = 0; n < 3; ++n) {
        const float* const from = p.fn + (n * 8 + g) * p.fn_stride + k;
        float v[chunk];
        if (p.fn_aligned) {
          load_values<float, chunk>(from, 0, v);
        } else {
          PORTILE_UNROLL
          for (int e = 0; e < chunk; ++e) v[e] = from[e];
        }
        PORTILE_UNROLL
        for (int e = 0; e < chunk; e += 2) {
          std::uint32_t high[2], low[2];
          PORTILE_UNROLL
          for (int h = 0; h < 2; ++h) {
            const float f = tf32_factor(v[e + h]);
            high[h] = numeric::float_bits(f) & 0xFFFF0000u;
            const float top = numeric::bits_float(high[h]);
            low[h] = numeric::is_finite(top) ? numeric::float_bits(f - top) : 0u;
          }
          m.w[i][n][e / 2] = byte_permute(high[0], high[1], 0x7632u);
          m.w[i][n][4 + e / 2] = byte_permute(low[0], low[1], 0x7632u);
        }
      }
    }
  }

  /// Starts bringing one chunk of each stream of a tile's token. Tokens beyond the last are the last again.
  template <class Block>
  static PORTILE_DEVICE void bring(const Block& block, const params& p, int rank, std::int64_t at, int token,
                                   int c, bf16* to) {
    const int units = p.slice / chunk;
    std::int64_t t = at * tile + token;
    if (t >= p.mixes.from.tokens) t = p.mixes.from.tokens - 1;
    const bf16* from = p.residual.at(t) + rank * p.slice + c * chunk;
    to += token * pitch_of(p.slice);
    PORTILE_UNROLL
    for (int s = 0; s < streams; ++s) {
      bf16* const there = to + chunk_at(token, s * units + c);
      if (clustered || p.aligned)
        block.copy16_async(there, from);
      else
        store16(there, load_chunk<false>(from));
      from += p.residual.stream;
    }
  }
  template <class Block>
  static PORTILE_DEVICE void bring_tile(const Block& block, const params& p, int rank, std::int64_t at,
                                        bf16* to) {
    const int units = p.slice / chunk;
    for (int i = block.thread(); i < tile * units; i += threads) {
      const auto token = static_cast<int>(p.stream_units.quotient(static_cast<std::uint32_t>(i)));
      bring(block, p, rank, at, token, i - token * units, to);
    }
  }

  /// The sums of the block's slice, to `total`: [mixes, then squares][token]. Barriers inside.
  template <class Block>
  static PORTILE_DEVICE void slice_sums(const Block& block, const params& p, const bf16* from,
                                        const matrix& m, float* total) {
    const int lane = block.lane(), g = lane / 4, q = lane % 4, pitch = pitch_of(p.slice);
    const range mine = range_of(block, p);
    float sum[2][3][4] = {}, square[2] = {};
    from += g * pitch;
    PORTILE_UNROLL
    for (int i = 0; i < steps; ++i) {
      if (!full && i >= mine.count) continue;
      const int at = chunk_at(g, (mine.step0 + i) * 4 + q);
      PORTILE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const words4 w = load16(from + h * 8 * pitch + at);
        PORTILE_UNROLL
        for (int e = 0; e < chunk; ++e) {
          const float r = lane_value(w, e);
          square[h] = ::fmaf(r, r, square[h]);
        }
        PORTILE_UNROLL
        for (int k = 0; k < 2; ++k) {
          PORTILE_UNROLL
          for (int n = 0; n < 3; ++n)
            mma_bf16_16x8x16(
                block, sum[h][n],
                {m.w[i][n][2 * k], m.w[i][n][4 + 2 * k], m.w[i][n][2 * k + 1], m.w[i][n][5 + 2 * k]},
                {w.w[2 * k], w.w[2 * k + 1]});
        }
      }
    }
    float* const sums = block.template shared<float>();
    float* const own = sums + block.wave() * wave_sums;
    PORTILE_UNROLL
    for (int h = 0; h < 2; ++h) {
      PORTILE_UNROLL
      for (int n = 0; n < 3; ++n)
        store8(own + (n * 8 + g) * sum_pitch + h * 8 + q * 2,
               {{numeric::float_bits(sum[h][n][0] + sum[h][n][2]),
                 numeric::float_bits(sum[h][n][1] + sum[h][n][3])}});
      square[h] = reduce_lanes(block, square[h], 4, plus{});
      if (q == 0) own[mixes * sum_pitch + h * 8 + g] = square[h];
    }
    block.barrier();
    for (int i = block.thread(); i < values; i += threads) {
      const int mix = i / tile, token = i % tile;
      float v = 0.0f;
      PORTILE_UNROLL
      for (int w = 0; w < waves; ++w) v += sums[w * wave_sums + mix * sum_pitch + token];
      total[i] = v;
    }
    block.barrier();
  }

  template <class Block>
  static PORTILE_DEVICE void run_alone(const Block& block, const params& p) {
    matrix m;
    int have = -1;
    bf16* const buffer = block.template shared<bf16>(tiles_at);
    float* const total = block.template shared<float>(total_at * sizeof(float));
    const partial_sums& to = p.mixes.from;
    for (std::int64_t work = block.index(); work < p.tiles * cluster; work += block.grid()) {
      const auto rank = static_cast<int>(work % cluster);
      const std::int64_t at = work / cluster;
      bring_tile(block, p, rank, at, buffer);
      if (rank != have) load_matrix(block, p, rank, m);
      have = rank;
      block.wait_copies();
      block.barrier();
      slice_sums(block, p, buffer, m, total);
      for (int i = block.thread(); i < values; i += threads) {
        const int mix = i / tile;
        const std::int64_t t = at * tile + i % tile;
        if (t >= to.tokens) continue;
        if (mix < mixes)
          to.out_mul[rank * to.mul_split + t * to.mul_token + mix] = total[i];
        else
          to.sqrsum[rank * to.square_split + t * to.square_token] = total[i];
      }
    }
  }

  template <class Block>
  static PORTILE_DEVICE void run_cluster(const Block& block, const params& p) {
    const auto rank = static_cast<int>(block.index() % cluster);
    const std::int64_t first = block.index() / cluster, stride = block.grid() / cluster;
    const int buffer_values = tile * pitch_of(p.slice);
    bf16* const tiles = block.template shared<bf16>(tiles_at);
    float* const total = block.template shared<float>(total_at * sizeof(float));
    mailbox* const boxes = block.template shared<mailbox>(boxes_at * sizeof(float));
    if (block.thread() == 0) {
      boxes[0].open();
      boxes[1].open();
    }
    cluster_arrive(block);  // no block sends to one that has not started
    PORTILE_UNROLL
    for (int b = 0; b < buffers; ++b) {
      if (first + b * stride < p.tiles)
        bring_tile(block, p, rank, first + b * stride, tiles + b * buffer_values);
      commit_copies();
    }
    matrix m;
    load_matrix(block, p, rank, m);
    cluster_wait(block);

    int turn = 0, parity = 0;
    bf16 *current = tiles, *before = tiles + 2 * buffer_values;
    const auto next_of = [&](bf16* b) { return b == tiles + 2 * buffer_values ? tiles : b + buffer_values; };
    for (std::int64_t at = first; at < p.tiles; at += stride) {
      if (at == first)
        wait_copy_groups<buffers - 1>();
      else
        wait_copy_groups<buffers - 2>();
      block.barrier();
      slice_sums(block, p, current, m, total);
      send(block, rank, total, turn, boxes + turn);
      if (at > first) {
        apply(block, p, rank, at - stride, before, turn ^ 1, at + 2 * stride);
        commit_copies();
      }
      boxes[turn].wait(block, parity);
      add_slices(block, p, rank, at, turn);
      before = current;
      current = next_of(current);
      parity ^= turn;
      turn ^= 1;
    }
    block.barrier();
    const std::int64_t mine = (p.tiles - first + stride - 1) / stride;
    apply(block, p, rank, first + (mine - 1) * stride, before, turn ^ 1, p.tiles);
    for (std::int64_t n = 0; n < mine; n += threads / streams) {
      const std::int64_t mixed = n + block.thread() / streams;
      std::int64_t t = (first + (mixed < mine ? mixed : mine - 1) * stride) * tile + rank;
      const bool live = mixed < mine && t < p.mixes.from.tokens;
      if (t >= p.mixes.from.tokens) t = 0;
      float sum[streams + 3];
      const int i = block.thread() % streams;
      const float* const kept = p.kept + t * slices_kept;
      sum[0] = 0.0f;
      sum[1] = live ? kept[i] : 0.0f;
      PORTILE_UNROLL
      for (int o = 0; o < streams; ++o) sum[2 + o] = live ? kept[streams + i * streams + o] : 0.0f;
      sum[streams + 2] = live ? kept[owned] : 0.0f;
      store_mixes<streams>(block, p.mixes, t, i, live, sum);
    }
  }

  /// The block's sums to where they are added: those of the pre mixes and squares to all, the others to the
  /// block of their token.
  template <class Block>
  static PORTILE_DEVICE void send(const Block& block, int rank, const float* total, int turn, mailbox* box) {
    if (block.thread() == 0) box->expect(cluster * (sent + owned) * sizeof(float));
    const int to = block.thread() / tile, n = block.thread() % tile;
    float* const received =
        block.template shared<float>(received_at * sizeof(float)) + (turn * cluster + rank) * sent;
    send16(block, received + n * 4, load16(total + n * 4), box, to);
    if (n < tile / 4)
      send16(block, received + streams * tile + n * 4, load16(total + mixes * tile + n * 4), box, to);
    float* const own =
        block.template shared<float>(owned_at * sizeof(float)) + (turn * cluster + rank) * owned;
    for (int j = n; j < owned; j += tile) send4(block, own + j, total[(streams + j) * tile + to], box, to);
  }

  /// Adds the slices in order: the tile's pre mixes to the weights, the rest of the block's token to where it
  /// is kept.
  template <class Block>
  static PORTILE_DEVICE void add_slices(const Block& block, const params& p, int rank, std::int64_t at,
                                        int turn) {
    const float* const received =
        block.template shared<float>(received_at * sizeof(float)) + turn * cluster * sent;
    if (block.thread() < streams * tile) {
      const int mix = block.thread() / tile, token = block.thread() % tile;
      float sum = 0.0f, square = 0.0f;
      PORTILE_UNROLL
      for (int s = 0; s < cluster; ++s) {
        sum += received[s * sent + block.thread()];
        square += received[s * sent + streams * tile + token];
      }
      const float r = rms_rstd(square, p.mixes.size, p.mixes.norm_eps);
      block.template shared<float>(weights_at * sizeof(float))[(turn * tile + token) * streams + mix] =
          p.mixes.affine.pre(sum * r, mix, p.mixes.pre_eps);
    } else if (block.thread() < streams * tile + slices_kept) {
      const int j = block.thread() - streams * tile;
      const float* const own =
          block.template shared<float>(owned_at * sizeof(float)) + turn * cluster * owned;
      const float* from = j < owned ? own + j : received + streams * tile + rank;
      const int step = j < owned ? owned : sent;
      float sum = 0.0f;
      PORTILE_UNROLL
      for (int s = 0; s < cluster; ++s) sum += from[s * step];
      const std::int64_t t = at * tile + rank;
      if (t < p.mixes.from.tokens) p.kept[t * slices_kept + j] = sum;
    }
  }

  /// The weighted streams of a tile; what a thread has read makes room for the same place of tile `next`.
  template <class Block>
  static PORTILE_DEVICE void apply(const Block& block, const params& p, int rank, std::int64_t at, bf16* from,
                                   int turn, std::int64_t next) {
    const int units = p.slice / chunk;
    const float* const weights =
        block.template shared<float>(weights_at * sizeof(float)) + turn * tile * streams;
    for (int i = block.thread(); i < tile * units; i += threads) {
      const auto token = static_cast<int>(p.stream_units.quotient(static_cast<std::uint32_t>(i)));
      const int c = i - token * units;
      const bf16* const row = from + token * pitch_of(p.slice);
      words4 w[streams];
      PORTILE_UNROLL
      for (int s = 0; s < streams; ++s) w[s] = load16(row + chunk_at(token, s * units + c));
      const words4 weight = load16(weights + token * streams);
      float sum[chunk] = {};
      PORTILE_UNROLL
      for (int s = 0; s < streams; ++s) add_scaled(numeric::bits_float(weight.w[s]), w[s], sum);
      const std::int64_t t = at * tile + token;
      if (t < p.mixes.from.tokens) store16(p.out.at(t) + rank * p.slice + c * chunk, round_chunk(sum));
      if (next < p.tiles) bring(block, p, rank, next, token, c, from);
    }
  }
};

}  // namespace portile::gpu::mhc_steps
