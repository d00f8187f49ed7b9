#include <portile/kernels/mhc/pre_norm_fn.hpp>
#include <portile/kernels/mhc/pre_norm_fn_partials.hpp>

#include "backends/gpu/mhc.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

struct sums_params {
  rows<const bf16> residual;
  const float *fn, *norm_weight;  ///< norm_weight null: none
  std::int64_t fn_stride;
  partial_sums to;
  std::int64_t group, splits;  ///< channels of an RMS group, ranges it is cut into
  std::int64_t tiles, column_groups, work;
  divider hidden;
  bool residual_aligned, fn_aligned, total;
};

/// Partial sums of a tile of tokens over one split, `columns` products each, by fp32 multiply-adds. The
/// tile's channels and the matrix's pass through shared memory, 128 channels a round: four runs of 32, one
/// for each quarter of the block. A thread sums `own` tokens over its quarter's channels in order; the
/// quarters are added in order at the end. So the bits depend on the split's borders alone.
template <int columns, int own>
struct sums_kernel {
  static constexpr int threads = 256, slots = 64, quarters = threads / slots;
  static constexpr int min_blocks = 2;
  static constexpr int span = 32, round = quarters * span, tile = slots * own;
  /// Of a token in the tile: an odd number of 16-byte units, so that neighbouring tokens are in other banks.
  static constexpr int pitch = round + chunk;
  static constexpr int sums = columns + 1, sums_pitch = tile + 1;
  static constexpr std::size_t tile_bytes = std::size_t{tile} * pitch * sizeof(bf16);
  static constexpr std::size_t shared_bytes =
      std::max(tile_bytes + std::size_t{columns} * round * sizeof(float),
               std::size_t{quarters} * sums * sums_pitch * sizeof(float));
  using params = sums_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    bf16* const channels = block.template shared<bf16>();
    float* const matrix = block.template shared<float>(tile_bytes);
    float* const scratch = block.template shared<float>();
    const int slot = block.thread() % slots, quarter = block.thread() / slots;

    for (std::int64_t work = block.index(); work < p.work; work += block.grid()) {
      std::int64_t rest = work / p.tiles;
      const std::int64_t t0 = (work - rest * p.tiles) * tile;
      const std::int64_t c0 = rest % p.column_groups * columns;
      rest /= p.column_groups;
      const std::int64_t g = rest % p.to.groups, part = rest / p.to.groups;
      const std::int64_t last = p.total ? p.splits : part + 1;
      for (std::int64_t s = p.total ? 0 : part; s < last; ++s) {
        const std::int64_t first = g * p.group + s * p.group / p.splits;
        const std::int64_t end = g * p.group + (s + 1) * p.group / p.splits;
        channel_place place(block, p, first);
        float product[own][columns] = {}, square[own] = {};
        for (std::int64_t k = first; k < end; k += round) {
          bring_channels(block, p, t0, end - k, p.residual_aligned && first % chunk == 0, place, channels);
          place.advance(p);
          bring_matrix(block, p, c0, k, end, p.fn_aligned && first % 4 == 0, matrix);
          block.barrier();
          if (t0 + slot < p.to.tokens) {
            const std::int64_t count = end - k - quarter * span;
            add_round(channels + slot * pitch + quarter * span, matrix + quarter * span,
                      static_cast<int>(count < span ? count : span), product, square);
          }
          block.barrier();
        }

        float* const mine = scratch + quarter * sums * sums_pitch + slot;
        PORTILE_UNROLL
        for (int o = 0; o < own; ++o) {
          PORTILE_UNROLL
          for (int c = 0; c < columns; ++c) mine[c * sums_pitch + o * slots] = product[o][c];
          mine[columns * sums_pitch + o * slots] = square[o];
        }
        block.barrier();
        store_sums(block, p, scratch, t0, c0, g, p.total ? 0 : part, s > 0 && p.total);
        block.barrier();
      }
    }
  }

  /// Where a thread's eight channels of a round begin. No division between rounds: it would take the
  /// registers of the sums.
  struct channel_place {
    std::int64_t stream, channel;

    template <class Block>
    PORTILE_DEVICE channel_place(const Block& block, const params& p, std::int64_t first) {
      const std::int64_t from = first + block.thread() % (round / chunk) * chunk;
      stream = p.hidden.quotient(from);
      channel = from - stream * p.hidden.value();
    }
    PORTILE_DEVICE void advance(const params& p) {
      for (channel += round; channel >= p.hidden.value(); channel -= p.hidden.value()) ++stream;
    }
  };

  /// The next 128 channels of the tile's tokens, `left` of them in the split; zeros where there are none. A
  /// thread brings the same eight channels of several tokens.
  template <class Block>
  static PORTILE_DEVICE void bring_channels(const Block& block, const params& p, std::int64_t t0,
                                            std::int64_t left, bool aligned, const channel_place& place,
                                            bf16* to) {
    constexpr int pieces = round / chunk, step = threads / pieces, each = tile / step;
    const int piece = block.thread() % pieces, token = block.thread() / pieces;
    const std::int64_t count = left - piece * chunk;
    to += token * pitch + piece * chunk;
    if (aligned) {
      // Four at a time: with all of them in registers the sums would not stay there.
      const bf16* source = p.residual.at(t0 + token, place.stream) + place.channel;
      for (int first = 0; first < each; first += 4) {
        words4 w[4];
        PORTILE_UNROLL
        for (int n = 0; n < 4; ++n) {
          w[n] = words4{};
          if (count > 0 && t0 + token + (first + n) * step < p.to.tokens) w[n] = load16(source);
          source += step * p.residual.token;
        }
        if (count > 0 && count < chunk) {  // the row goes on where the split ends
          PORTILE_UNROLL
          for (int n = 0; n < 4; ++n) {
            PORTILE_UNROLL
            for (int e = 0; e < chunk; ++e)
              if (e >= count) w[n].w[e / 2] &= e % 2 == 0 ? 0u : 0xFFFFu;
          }
        }
        PORTILE_UNROLL
        for (int n = 0; n < 4; ++n) store16(to + (first + n) * step * pitch, w[n]);
      }
      return;
    }
    PORTILE_NO_UNROLL
    for (int n = 0; n < each; ++n) {
      const std::int64_t t = t0 + token + n * step;
      std::int64_t stream = place.stream, channel = place.channel;
      PORTILE_NO_UNROLL
      for (int e = 0; e < chunk; ++e) {
        bf16 v{};
        if (e < count && t < p.to.tokens) v = p.residual.at(t, stream)[channel];
        to[n * step * pitch + e] = v;
        if (++channel == p.hidden.value()) {
          channel = 0;
          ++stream;
        }
      }
    }
  }

  /// The same channels of rows c0 .. c0 + columns - 1 of the matrix, as the products take them.
  template <class Block>
  static PORTILE_DEVICE void bring_matrix(const Block& block, const params& p, std::int64_t c0,
                                          std::int64_t k, std::int64_t end, bool aligned, float* to) {
    constexpr int pieces = round / 4, step = threads / pieces, each = columns / step;
    static_assert(columns % step == 0);
    const int piece = block.thread() % pieces, row = block.thread() / pieces;
    const std::int64_t from = k + piece * 4, j0 = c0 + row;
    const float* const source = p.fn + j0 * p.fn_stride + from;
    to += row * round + piece * 4;
    float v[each][4] = {}, weight[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (aligned && from + 4 <= end) {
      PORTILE_UNROLL
      for (int n = 0; n < each; ++n)
        if (j0 + n * step < p.to.mixes) load_values<float, 4>(source + n * step * p.fn_stride, 0, v[n]);
      if (p.norm_weight) load_values<float, 4>(p.norm_weight, from, weight);
    } else {
      PORTILE_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (from + e >= end) continue;
        PORTILE_UNROLL
        for (int n = 0; n < each; ++n)
          if (j0 + n * step < p.to.mixes) v[n][e] = source[n * step * p.fn_stride + e];
        if (p.norm_weight) weight[e] = p.norm_weight[from + e];
      }
    }
    PORTILE_UNROLL
    for (int n = 0; n < each; ++n) {
      PORTILE_UNROLL
      for (int e = 0; e < 4; ++e)
        v[n][e] = numeric::to_tf32_nearest(p.norm_weight ? v[n][e] * weight[e] : v[n][e]);
      store_values<float, 4>(to + n * step * round, 0, v[n]);
    }
  }

  static PORTILE_DEVICE void add_round(const bf16* channels, const float* matrix, int count,
                                       float (&product)[own][columns], float (&square)[own]) {
    // Four channels a step: with more, the loads of the matrix's values that the compiler starts early would
    // take the registers of the sums.
    constexpr int depth = 4;
    PORTILE_NO_UNROLL
    for (int k = 0; k < count; k += depth) {
      float r[own][depth];
      PORTILE_UNROLL
      for (int o = 0; o < own; ++o) {
        const words2 w = load8(channels + o * slots * pitch + k);
        PORTILE_UNROLL
        for (int e = 0; e < depth; ++e) {
          r[o][e] = e % 2 == 0 ? bf16_low(w.w[e / 2]) : bf16_high(w.w[e / 2]);
          square[o] = ::fmaf(r[o][e], r[o][e], square[o]);
        }
      }
      PORTILE_UNROLL
      for (int c = 0; c < columns; ++c) {
        float f[depth];
        load_values<float, depth>(matrix + c * round, k, f);  // one address for all lanes: a broadcast
        PORTILE_UNROLL
        for (int e = 0; e < depth; ++e) {
          PORTILE_UNROLL
          for (int o = 0; o < own; ++o) product[o][c] = ::fmaf(r[o][e], f[e], product[o][c]);
        }
      }
    }
  }

  template <class Block>
  static PORTILE_DEVICE void store_sums(const Block& block, const params& p, const float* scratch,
                                        std::int64_t t0, std::int64_t c0, std::int64_t g, std::int64_t part,
                                        bool add) {
    PORTILE_NO_UNROLL
    for (int at = block.thread(); at < tile * sums; at += threads) {
      const int token = at / sums, c = at % sums;
      const std::int64_t t = t0 + token, j = c0 + c;
      if (t >= p.to.tokens || (c < columns ? j >= p.to.mixes : c0 > 0)) continue;
      const float* const from = scratch + c * sums_pitch + token;
      float sum = from[0];
      PORTILE_UNROLL
      for (int q = 1; q < quarters; ++q) sum += from[q * sums * sums_pitch];
      float& to = c < columns
                      ? p.to.out_mul[part * p.to.mul_split + t * p.to.mul_token + g * p.to.mul_group + j]
                      : p.to.sqrsum[part * p.to.square_split + t * p.to.square_token + g];
      to = add ? to + sum : sum;
    }
  }
};

/// The same on the matrix unit. A block keeps a segment of the matrix's channels in shared memory and streams
/// a range of tokens past it, sixteen at a time. Each wave multiplies its own run of the segment, 32 channels
/// a step; the channels of its next tile are on their way in registers meanwhile. A step's products are
/// summed by the matrix unit from 0; the steps of a wave, the waves and the segments of a split are added in
/// order in fp32. So the bits depend on the split's borders and on the length of a segment alone.
template <int tiles, int steps>
struct matrix_sums_kernel {
  static constexpr int threads = 256, waves = threads / 32;
  /// Splits of one segment each: more blocks on a multiprocessor instead of more channels in a block.
  static constexpr bool short_splits = steps <= 2;
  static constexpr int min_blocks = short_splits ? 2 : 1;
  static constexpr int columns = 8 * tiles, rows_in = 16, span = 32;
  static constexpr int longest = waves * steps * span;  ///< segment
  /// Tokens whose channels start on their way before the matrix is there.
  static constexpr int ahead = 64;
  /// A wave's sums of a tile: pairs of products as the matrix unit gives them, then the squares.
  static constexpr int pairs = tiles * 64, wave_sums = 2 * pairs + rows_in;
  static_assert(pairs + rows_in <= threads);
  static constexpr std::size_t sums_bytes = std::size_t{2} * waves * wave_sums * sizeof(float);
  static_assert(sums_bytes >= longest * sizeof(float), "the channels' weights lie there first");
  /// Values of a step: [tile][half of a chunk][lane][4].
  static constexpr int step_values = tiles * 2 * 32 * 4;

  struct params {
    rows<const bf16> residual;
    const float *fn, *norm_weight;  ///< norm_weight null: none
    std::int64_t fn_stride;
    partial_sums to;
    std::int64_t group, splits, segment, range;  ///< range: tokens of a block's turn
    std::int64_t column_groups, work;
    divider hidden;
    bool flat;  ///< the residual's rows are aligned and its streams lie one after the other
    bool residual_aligned, fn_aligned, paired;
    bool total;  ///< add up the splits
    bool hold;   ///< a split's segments are added up before they are added to the total: ranges of one tile
  };

  /// Channels of the longest segment that fits a device's shared memory; 0: none does.
  static std::int64_t segment_of(const portile_device_info& device) {
    const std::int64_t left = device.max_shared - static_cast<std::int64_t>(sums_bytes);
    const std::int64_t most = left / (std::int64_t{step_values} * 4) / waves * waves * span;
    return std::clamp<std::int64_t>(most, 0, longest);
  }
  static std::size_t shared_bytes(std::int64_t channels) {
    return sums_bytes +
           static_cast<std::size_t>(numeric::ceil_div(channels, span)) * step_values * sizeof(float);
  }

  struct place {
    std::int64_t t0, t1;
    int c0, group, part;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    if constexpr (Block::has_mma_tf32) {
      int turn = 0;
      for (std::int64_t work = block.index(); work < p.work; work += block.grid()) {
        place at;
        std::int64_t rest = work / p.column_groups;
        at.c0 = static_cast<int>(work - rest * p.column_groups) * columns;
        at.part = static_cast<int>(rest % p.to.splits);
        rest /= p.to.splits;
        at.group = static_cast<int>(rest % p.to.groups);
        at.t0 = rest / p.to.groups * p.range;
        at.t1 = at.t0 + p.range < p.to.tokens ? at.t0 + p.range : p.to.tokens;
        const std::int64_t last = p.total ? p.splits : at.part + 1;
        for (std::int64_t s = p.total ? 0 : at.part; s < last; ++s) {
          const std::int64_t first = at.group * p.group + s * p.group / p.splits;
          const std::int64_t end = at.group * p.group + (s + 1) * p.group / p.splits;
          float held[2] = {};
          for (std::int64_t k = first; k < end; k += p.segment) {
            const bool done = short_splits || end - k <= p.segment, hold = !short_splits && p.hold;
            add_segment(block, p, at, k, done ? end : k + p.segment,
                        {hold && k > first, hold && !done, hold ? s > 0 : k > first || (p.total && s > 0)},
                        held, turn);
          }
        }
      }
    }
  }

  /// What becomes of a segment's sums.
  struct destiny {
    bool add_held, keep;  ///< add what was kept; keep the result
    bool add;             ///< to the sum in memory
  };

  template <class Block>
  static PORTILE_DEVICE void add_segment(const Block& block, const params& p, const place& at,
                                         std::int64_t first, std::int64_t end, destiny d, float (&held)[2],
                                         int& turn) {
    float* const matrix = block.template shared<float>(sums_bytes);
    const int wave = block.wave(), lane = block.lane(), token = lane / 4;
    const int channels = static_cast<int>(end - first), count = (channels + span - 1) / span;
    const int step0 = wave * count / waves, mine = (wave + 1) * count / waves - step0;
    // The lane's chunk of the wave's first step; the next ones are `span` channels apart.
    const int own = step0 * span + lane % 4 * chunk;
    const bool direct = p.flat && first % chunk == 0 && end % chunk == 0;
    int live = 0;  // chunks of the lane that the segment has
    PORTILE_UNROLL
    for (int i = 0; i < steps; ++i) live += i < mine && own + i * span < channels;

    if (direct) prefetch_tokens(block, p, at, first, channels);
    bring_matrix(block, p, at.c0, first, end, count, matrix);

    const auto row = [&](std::int64_t t) {
      return p.residual.data + (t < at.t1 ? t : at.t1 - 1) * p.residual.token + first + own;
    };
    words4 next[steps][2] = {};
    const auto start = [&](int i, const bf16* r0, const bf16* r1) {
      if (i >= live) return;
      next[i][0] = load16(r0 + i * span);
      next[i][1] = load16(r1 + i * span);
    };
    if (direct) {
      const bf16 *const r0 = row(at.t0 + token), *const r1 = row(at.t0 + token + 8);
      PORTILE_UNROLL
      for (int i = 0; i < steps; ++i) start(i, r0, r1);
    }
    for (std::int64_t t = at.t0; t < at.t1; t += rows_in) {
      if (!direct) gather(p, at, t + token, first + own, channels - own, mine, next);
      const bool more = direct && t + rows_in < at.t1;
      const bf16 *const r0 = row(t + rows_in + token), *const r1 = row(t + rows_in + token + 8);
      float sum[tiles][4] = {}, square[2] = {};
      PORTILE_UNROLL
      for (int i = 0; i < steps; ++i) {
        if (i < mine) multiply(block, next[i], matrix + (step0 + i) * step_values, sum, square);
        if (more) start(i, r0, r1);
      }

      float* const sums = block.template shared<float>() + turn * waves * wave_sums;
      turn ^= 1;
      float* const own_sums = sums + wave * wave_sums;
      PORTILE_UNROLL
      for (int n = 0; n < 2 * tiles; ++n)
        store8(own_sums + (n * 32 + lane) * 2, {{numeric::float_bits(sum[n / 2][n % 2 * 2]),
                                                 numeric::float_bits(sum[n / 2][n % 2 * 2 + 1])}});
      PORTILE_UNROLL
      for (int h = 0; h < 2; ++h) {
        square[h] = reduce_lanes(block, square[h], 4, plus{});
        if (lane % 4 == 0) own_sums[2 * pairs + h * 8 + token] = square[h];
      }
      block.barrier();
      finish_tile(block, p, at, t, sums, d, held);
    }
  }

  /// Brings the first tokens of a range into the device's cache: its memory would be idle while the matrix
  /// comes.
  template <class Block>
  static PORTILE_DEVICE void prefetch_tokens(const Block& block, const params& p, const place& at,
                                             std::int64_t first, int channels) {
    constexpr int line = 64;  // values
    for (int n = block.wave(); n < ahead && at.t0 + n < at.t1; n += waves) {
      const bf16* const row = p.residual.at(at.t0 + n) + first;
      for (int k = block.lane() * line; k < channels; k += 32 * line) block.prefetch(row + k);
    }
  }

  /// The segment's channels of rows c0 .. c0 + columns - 1, as the matrix unit takes them: lane 4g + q of
  /// tile n has those that lane 4x + q of the tokens has, of row 8n + g. A wave brings one row of each tile
  /// and rounds what it brought.
  template <class Block>
  static PORTILE_DEVICE void bring_matrix(const Block& block, const params& p, std::int64_t c0,
                                          std::int64_t first, std::int64_t end, int count, float* matrix) {
    float* const weights = block.template shared<float>();
    const int wave = block.wave(), lane = block.lane();
    const int q = lane / 2 % 4, half = lane % 2, pieces = count * (span / 4);
    const bool aligned = p.fn_aligned && first % 4 == 0;
    // A lane's pieces of four channels are 32 pieces, that is four steps, apart.
    float* const own = matrix + lane / 8 * step_values + (half * 32 + ((wave * 4 + q) ^ (half * 4))) * 4;
    const auto bring = [&](const float* from, bool there, std::int64_t k, float* to) {
      if (aligned && there && k + 4 <= end) {
        block.copy16_async(to, from + k);
      } else {
        PORTILE_UNROLL
        for (int e = 0; e < 4; ++e) to[e] = there && k + e < end ? from[k + e] : 0.0f;
      }
    };
    block.barrier();  // the last segment's matrix and sums have been read
    for (int piece = lane; piece < pieces; piece += 32) {
      PORTILE_UNROLL
      for (int n = 0; n < tiles; ++n) {
        const std::int64_t j = c0 + n * 8 + wave;
        bring(p.fn + j * p.fn_stride, j < p.to.mixes, first + piece * 4,
              own + piece / 32 * 4 * step_values + n * 256);
      }
    }
    if (p.norm_weight)
      for (int piece = block.thread(); piece < pieces; piece += threads)
        bring(p.norm_weight, true, first + piece * 4, weights + piece * 4);
    block.wait_copies();
    block.barrier();
    for (int piece = lane; piece < pieces; piece += 32) {
      float weight[4] = {1.0f, 1.0f, 1.0f, 1.0f};
      if (p.norm_weight) load_values<float, 4>(weights, piece * 4, weight);
      PORTILE_UNROLL
      for (int n = 0; n < tiles; ++n) {
        float* const at = own + piece / 32 * 4 * step_values + n * 256;
        float v[4];
        load_values<float, 4>(at, 0, v);
        PORTILE_UNROLL
        for (int e = 0; e < 4; ++e) v[e] = tf32_factor(p.norm_weight ? v[e] * weight[e] : v[e]);
        store_values<float, 4>(at, 0, v);
      }
    }
    block.barrier();
  }

  /// The lane's chunks of two tokens for any layout, `count` channels from k on.
  static PORTILE_DEVICE void gather(const params& p, const place& at, std::int64_t t, std::int64_t k,
                                    int count, int mine, words4 (&to)[steps][2]) {
    PORTILE_NO_UNROLL
    for (int n = 0; n < 2 * mine; ++n) {
      const int i = n / 2 * span;
      const words4 w = t + n % 2 * 8 < at.t1 ? gather_chunk(p, t + n % 2 * 8, k + i, count - i) : words4{};
      PORTILE_UNROLL
      for (int j = 0; j < 2 * steps; ++j)
        if (j == n) to[j / 2][j % 2] = w;  // registers have no address
    }
  }
  static PORTILE_DEVICE words4 gather_chunk(const params& p, std::int64_t t, std::int64_t k, int count) {
    words4 w{};
    if (count <= 0) return w;
    std::int64_t stream = p.hidden.quotient(k), channel = k - stream * p.hidden.value();
    if (p.residual_aligned && k % chunk == 0 && count >= chunk)
      return load16(p.residual.at(t, stream) + channel);
    PORTILE_UNROLL
    for (int e = 0; e < chunk; ++e) {
      if (e >= count) continue;
      w.w[e / 2] |= std::uint32_t{p.residual.at(t, stream)[channel].bits} << (16 * (e % 2));
      if (++channel == p.hidden.value()) {
        channel = 0;
        ++stream;
      }
    }
    return w;
  }

  /// A step: the chunks of two tokens that are eight apart, with all tiles.
  template <class Block>
  static PORTILE_DEVICE void multiply(const Block& block, const words4 (&w)[2], const float* matrix,
                                      float (&sum)[tiles][4], float (&square)[2]) {
    float product[tiles][4] = {};
    PORTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float r[2][4];
      PORTILE_UNROLL
      for (int h = 0; h < 2; ++h) {
        PORTILE_UNROLL
        for (int e = 0; e < 4; ++e) {
          r[h][e] = lane_value(w[h], half * 4 + e);
          square[h] = ::fmaf(r[h][e], r[h][e], square[h]);
        }
      }
      PORTILE_UNROLL
      for (int n = 0; n < tiles; ++n) {
        float f[4];
        load_values<float, 4>(matrix + (n * 2 + half) * 128, (block.lane() ^ (half * 4)) * 4, f);
        PORTILE_UNROLL
        for (int e = 0; e < 4; e += 2)
          block.mma_tf32_16x8x8(product[n], {r[0][e], r[1][e], r[0][e + 1], r[1][e + 1]}, {f[e], f[e + 1]});
      }
    }
    PORTILE_UNROLL
    for (int n = 0; n < tiles; ++n) {
      PORTILE_UNROLL
      for (int i = 0; i < 4; ++i) sum[n][i] += product[n][i];
    }
  }

  /// Adds the waves' sums of a tile in order: a thread two products of a token, or a token's squares.
  template <class Block>
  static PORTILE_DEVICE void finish_tile(const Block& block, const params& p, const place& at, std::int64_t t,
                                         const float* sums, destiny d, float (&held)[2]) {
    const int thread = block.thread(), lane = block.lane();
    const bool product = thread < pairs;
    if (thread >= pairs + rows_in) return;
    float v[2] = {};
    PORTILE_UNROLL
    for (int w = 0; w < waves; ++w) {
      const float* const from = sums + w * wave_sums;
      if (product) {
        const words2 pair = load8(from + thread * 2);
        v[0] += numeric::bits_float(pair.w[0]);
        v[1] += numeric::bits_float(pair.w[1]);
      } else {
        v[0] += from[pairs + thread];
      }
    }
    if (d.add_held) {
      v[0] += held[0];
      v[1] += held[1];
    }
    if (d.keep) {
      held[0] = v[0];
      held[1] = v[1];
      return;
    }
    t += product ? block.wave() % 2 * 8 + lane / 4 : thread - pairs;
    if (t >= at.t1) return;
    if (!product) {
      if (at.c0 > 0) return;
      float& to = p.to.sqrsum[at.part * p.to.square_split + t * p.to.square_token + at.group];
      to = d.add ? to + v[0] : v[0];
      return;
    }
    const std::int64_t j = at.c0 + thread / 64 * 8 + lane % 4 * 2;
    float* const to =
        p.to.out_mul + at.part * p.to.mul_split + t * p.to.mul_token + at.group * p.to.mul_group + j;
    if (p.paired) {
      if (j >= p.to.mixes) return;
      if (d.add) {
        const words2 old = load8(to);
        v[0] += numeric::bits_float(old.w[0]);
        v[1] += numeric::bits_float(old.w[1]);
      }
      store8(to, {{numeric::float_bits(v[0]), numeric::float_bits(v[1])}});
    } else {
      PORTILE_UNROLL
      for (int e = 0; e < 2; ++e)
        if (j + e < p.to.mixes) to[e] = d.add ? to[e] + v[e] : v[e];
    }
  }
};

template <int tiles, int steps>
void start_matrix_sums(const context& c, const sums_params& q, const tensor& residual) {
  using kernel = matrix_sums_kernel<tiles, steps>;
  const portile_device_info& device = *c.call.device;
  typename kernel::params p{};
  p.residual = q.residual;
  p.fn = q.fn;
  p.norm_weight = q.norm_weight;
  p.fn_stride = q.fn_stride;
  p.to = q.to;
  p.group = q.group;
  p.splits = q.splits;
  p.hidden = q.hidden;
  p.residual_aligned = q.residual_aligned;
  p.flat = q.residual_aligned && (residual.extent(1) == 1 || residual.stride(1) == residual.extent(2));
  p.fn_aligned = q.fn_aligned;
  const partial_sums& to = q.to;
  p.paired = reinterpret_cast<std::uintptr_t>(to.out_mul) % 8 == 0 &&
             (to.mixes | to.mul_split | to.mul_token | to.mul_group) % 2 == 0;
  p.total = q.total;
  p.segment = kernel::segment_of(device);
  const std::int64_t longest_split = numeric::ceil_div(p.group, p.splits);
  p.hold = p.total && longest_split > p.segment;
  p.column_groups = std::max<std::int64_t>(1, numeric::ceil_div(to.mixes, kernel::columns));

  // As many ranges of tokens as fill the device: each takes the whole matrix.
  const std::size_t shared = kernel::shared_bytes(std::min(longest_split, p.segment));
  const std::int64_t resident = std::clamp<std::int64_t>(
      device.max_shared / static_cast<std::int64_t>(shared + 1024), 1, kernel::min_blocks);
  const std::int64_t others = p.column_groups * to.groups * to.splits;
  const std::int64_t tiles_of_tokens = numeric::ceil_div(to.tokens, kernel::rows_in);
  const std::int64_t ranges = std::max<std::int64_t>(1, resident * std::max(1, device.num_sms) / others);
  p.range = p.hold ? kernel::rows_in : numeric::ceil_div(tiles_of_tokens, ranges) * kernel::rows_in;
  p.work = numeric::ceil_div(to.tokens, p.range) * others;
  gpu::launch<kernel>(c, p.work, shared, p);
}

template <int columns, int own>
void start_sums(const context& c, sums_params p) {
  using kernel = sums_kernel<columns, own>;
  p.tiles = numeric::ceil_div(p.to.tokens, kernel::tile);
  p.column_groups = std::max<std::int64_t>(1, numeric::ceil_div(p.to.mixes, columns));
  p.work = p.tiles * p.column_groups * p.to.groups * p.to.splits;
  gpu::launch<kernel>(c, p.work, kernel::shared_bytes, p);
}

struct pre_norm_fn_simt {
  static std::uint64_t workspace(const portile_device_info& device, const mhc::pre_norm_fn& p) {
    return partials(device, p, nullptr).bytes();
  }
  static void launch(const context& c, const mhc::pre_norm_fn& p) {
    const partial_sums sums = partials(*c.call.device, p, c.call.workspace);
    const std::int64_t channels = p.fn.extent(1);
    launch_partial_sums(c, p.residual, p.fn, p.norm_weight, channels, std::min(p.n_splits, channels), sums);
    launch_reduce_partials(c, sums, p.out_mul, p.sqrsum, p.out, static_cast<float>(channels),
                           static_cast<float>(p.norm_eps));
  }

 private:
  static partial_sums partials(const portile_device_info& device, const mhc::pre_norm_fn& p, void* memory) {
    const std::int64_t tokens = p.out.extent(0);
    const std::int64_t channels = p.fn.extent(1);
    return {memory, kept_splits(device, tokens, std::min(p.n_splits, channels), channels), tokens,
            p.fn.extent(0)};
  }
};

struct pre_norm_fn_partials_simt {
  static void launch(const context& c, const mhc::pre_norm_fn_partials& p) {
    const tensor &mul = p.out_mul_splitted, &squares = p.sqrsum_splitted;
    partial_sums to;
    to.out_mul = static_cast<float*>(mul.data);
    to.sqrsum = static_cast<float*>(squares.data);
    to.splits = mul.extent(0);
    to.tokens = mul.extent(1);
    to.groups = mul.extent(2);
    to.mixes = mul.extent(3);
    to.mul_split = mul.stride(0);
    to.mul_token = mul.stride(1);
    to.mul_group = mul.stride(2);
    to.square_split = squares.stride(0);
    to.square_token = squares.stride(1);
    launch_partial_sums(c, p.residual, p.fn, {}, p.rms_group_size, p.n_splits, to);
  }
};

}  // namespace

std::int64_t mhc_steps::kept_splits(const portile_device_info& device, std::int64_t tokens,
                                    std::int64_t splits, std::int64_t channels) {
  const std::int64_t fills_device = std::int64_t{2} * std::max(1, device.num_sms) * 128;
  return splits > 64 || (tokens >= fills_device && channels / splits < matrix_segment) ? 1 : splits;
}

void mhc_steps::launch_partial_sums(const context& c, const tensor& residual, const tensor& fn,
                                    const tensor& norm_weight, std::int64_t group, std::int64_t splits,
                                    const partial_sums& to) {
  if (to.tokens == 0) return;
  sums_params p{};
  p.residual = rows<const bf16>(residual);
  p.fn = static_cast<const float*>(fn.data);
  p.norm_weight = static_cast<const float*>(norm_weight.data);
  p.fn_stride = fn.stride(0);
  p.to = to;
  p.group = group;
  p.splits = splits;
  p.hidden = divider(residual.extent(2), fn.extent(1));
  p.residual_aligned = whole_chunks(residual);
  p.fn_aligned = whole_chunks(fn) && whole_chunks(norm_weight);
  p.total = to.splits < splits;
  if (has_mma_tf32(*c.call.device)) {
    constexpr int few = 2, many = matrix_segment / 256;
    const bool is_short =
        numeric::ceil_div(group, splits) <= matrix_sums_kernel<3, few>::segment_of(*c.call.device);
    if (to.mixes <= 8) return start_matrix_sums<1, many>(c, p, residual);
    return is_short ? start_matrix_sums<3, few>(c, p, residual) : start_matrix_sums<3, many>(c, p, residual);
  }
  // Few tokens: more blocks rather than more work for each load of the matrix.
  const bool few = to.tokens <= 2048;
  if (to.mixes <= 8)
    few ? start_sums<8, 1>(c, p) : start_sums<8, 2>(c, p);
  else
    few ? start_sums<24, 1>(c, p) : start_sums<24, 2>(c, p);
}

extern const portile_implementation mhc_pre_norm_fn_simt;
const portile_implementation mhc_pre_norm_fn_simt = make_simt<mhc::pre_norm_fn, pre_norm_fn_simt>();
extern const portile_implementation mhc_pre_norm_fn_partials_simt;
const portile_implementation mhc_pre_norm_fn_partials_simt =
    make_simt<mhc::pre_norm_fn_partials, pre_norm_fn_partials_simt>();

}  // namespace portile::gpu
