#include <portile/kernels/mhc/pre_norm_fn.hpp>
#include <portile/kernels/mhc/pre_norm_fn_partials.hpp>

#include "backends/gpu/mhc.hpp"

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
        float product[own][columns] = {}, square[own] = {};
        for (std::int64_t k = first; k < end; k += round) {
          bring_channels(block, p, t0, k, end, p.residual_aligned && first % chunk == 0, channels);
          bring_matrix(block, p, c0, k, end, p.fn_aligned && first % 4 == 0, matrix);
          block.barrier();
          if (t0 + slot < p.to.tokens)
            add_round(channels + slot * pitch + quarter * span, matrix + quarter * span, product, square);
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

  /// Channels k .. k + 127 of the tile's tokens; zeros where there are none.
  template <class Block>
  static PORTILE_DEVICE void bring_channels(const Block& block, const params& p, std::int64_t t0,
                                            std::int64_t k, std::int64_t end, bool aligned, bf16* to) {
    constexpr int pieces = round / chunk, each = tile * pieces / threads;
    words4 w[each];
    PORTILE_UNROLL
    for (int n = 0; n < each; ++n) {
      const int at = n * threads + block.thread();
      const std::int64_t t = t0 + at / pieces, from = k + at % pieces * chunk;
      w[n] = words4{};
      if (t >= p.to.tokens || from >= end) continue;
      if (aligned) {
        const std::int64_t i = p.hidden.quotient(from);
        w[n] = load16(p.residual.at(t, i) + (from - i * p.hidden.value()));
        // The row goes on where the split ends.
        if (from + chunk > end) {
          PORTILE_UNROLL
          for (int e = 0; e < chunk; ++e)
            if (from + e >= end) w[n].w[e / 2] &= e % 2 == 0 ? 0u : 0xFFFFu;
        }
      } else {
        PORTILE_UNROLL
        for (int e = 0; e < chunk; ++e) {
          if (from + e >= end) continue;
          const std::int64_t i = p.hidden.quotient(from + e);
          const bf16 v = p.residual.at(t, i)[from + e - i * p.hidden.value()];
          w[n].w[e / 2] |= std::uint32_t{v.bits} << (16 * (e % 2));
        }
      }
    }
    PORTILE_UNROLL
    for (int n = 0; n < each; ++n) {
      const int at = n * threads + block.thread();
      store16(to + at / pieces * pitch + at % pieces * chunk, w[n]);
    }
  }

  /// The same channels of rows c0 .. c0 + columns - 1 of the matrix, as the products take them.
  template <class Block>
  static PORTILE_DEVICE void bring_matrix(const Block& block, const params& p, std::int64_t c0,
                                          std::int64_t k, std::int64_t end, bool aligned, float* to) {
    constexpr int pieces = round / 4, each = columns * pieces / threads;
    static_assert(columns * pieces % threads == 0);
    PORTILE_UNROLL
    for (int n = 0; n < each; ++n) {
      const int at = n * threads + block.thread();
      const std::int64_t j = c0 + at / pieces, from = k + at % pieces * 4;
      float v[4] = {}, weight[4] = {1.0f, 1.0f, 1.0f, 1.0f};
      if (j < p.to.mixes) {
        const float* const row = p.fn + j * p.fn_stride;
        if (aligned && from + 4 <= end) {
          load_values<float, 4>(row, from, v);
          if (p.norm_weight) load_values<float, 4>(p.norm_weight, from, weight);
        } else {
          PORTILE_UNROLL
          for (int e = 0; e < 4; ++e) {
            if (from + e >= end) continue;
            v[e] = row[from + e];
            if (p.norm_weight) weight[e] = p.norm_weight[from + e];
          }
        }
      }
      PORTILE_UNROLL
      for (int e = 0; e < 4; ++e) v[e] = numeric::to_tf32_nearest(p.norm_weight ? v[e] * weight[e] : v[e]);
      store_values<float, 4>(to + at / pieces * round + at % pieces * 4, 0, v);
    }
  }

  static PORTILE_DEVICE void add_round(const bf16* channels, const float* matrix,
                                       float (&product)[own][columns], float (&square)[own]) {
    for (int k = 0; k < span; k += chunk) {
      float r[own][chunk];
      PORTILE_UNROLL
      for (int o = 0; o < own; ++o) {
        const words4 w = load16(channels + o * slots * pitch + k);
        PORTILE_UNROLL
        for (int e = 0; e < chunk; ++e) {
          r[o][e] = lane_value(w, e);
          square[o] = ::fmaf(r[o][e], r[o][e], square[o]);
        }
      }
      PORTILE_UNROLL
      for (int c = 0; c < columns; ++c) {
        float f[chunk];
        load_values<float, chunk>(matrix + c * round, k, f);  // one address for all lanes: a broadcast
        PORTILE_UNROLL
        for (int e = 0; e < chunk; ++e) {
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
    return {memory, kept_splits(device, tokens, std::min(p.n_splits, p.fn.extent(1))), tokens,
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
                                    std::int64_t splits) {
  const std::int64_t fills_device = std::int64_t{2} * std::max(1, device.num_sms) * 128;
  return splits > 64 || tokens >= fills_device ? 1 : splits;
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
