#include <portile/kernels/engram/gate_backward.hpp>

#include "backends/gpu/column_sums.hpp"
#include "backends/gpu/engram/gate_rows.hpp"

namespace portile::gpu {
namespace {

using numeric::bf16;

struct gate_backward_params {
  stream_rows<const bf16> out_grad, x, k, v;
  stream_rows<const float> weight;  ///< its "token" is the stream
  stream_values<const float> dot, gate_score, rstd_x, rstd_k;
  stream_rows<bf16> x_grad, k_grad, v_grad;
  token_mask mask;
  token_tiles tiles;
  float* partial;  ///< tiles x streams x hidden
  float* q;        ///< tokens x streams, of the general path
  std::int64_t streams, hidden;
  float size, c, clamp;
  bool add_residual;
};

/// Factors of one token and stream.
struct gate_slopes {
  float q, x, k;
};
/// `g_grad`: the sum of out_grad * v.
PORTILE_DEVICE gate_slopes finish_slopes(const gate_backward_params& p, std::int64_t t, std::int64_t i,
                                         float g_grad) {
  const float rx = p.rstd_x(t, i), rk = p.rstd_k(t, i), raw = p.dot(t, i), g = p.gate_score(t, i);
  float q = 0;
  // A branch: raw = 0 would give 0 * inf.
  if (!(::fabsf(raw * rx * rk * p.c) < p.clamp))
    q = g_grad * (g * (1.0f - g)) * 0.5f * ::sqrtf(p.c * rx * rk / ::fabsf(raw));
  return {q, raw * (rx * rx) / p.size, raw * (rk * rk) / p.size};
}
PORTILE_DEVICE float x_gradient(const gate_slopes& s, float x, float k, float w, float residual) {
  return ::fmaf(s.q, k * w - x * s.x, residual);
}
PORTILE_DEVICE float k_gradient(const gate_slopes& s, float x, float k, float w) {
  return s.q * (x * w - k * s.k);
}

/// A block takes the tokens of its tile for one stream, keeps their share of the weight's gradient in
/// registers, and writes the gradients of v for its share of the columns.
template <int num_threads, int chunks>
struct gate_backward_chunks {
  static constexpr int threads = num_threads, min_blocks = 1024 / threads;
  static constexpr std::size_t scratch_bytes = 2 * 16 * sizeof(float);
  using params = gate_backward_params;
  using row8 = raw8<bf16>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* scratch = block.template shared<float>();
    auto* weights = block.template shared<float>(scratch_bytes);
    int turn = 0;
    for (std::int64_t b = block.index(); b < p.tiles.blocks; b += block.grid()) {
      const std::int64_t tile = p.tiles.streams.quotient(b), i = b - tile * p.tiles.streams.value();
      // Each thread reads back what it wrote itself.
      PORTILE_UNROLL
      for (int c = 0; c < chunks; ++c)
        if (first(block, c) < p.hidden)
          raw8<float>::template load<true>(p.weight(i, 0) + first(block, c))
              .template store<true>(weights + first(block, c));
      float sums[chunks][8] = {};
      const std::int64_t end = p.tiles.begin(tile + 1);
      for (std::int64_t t = p.tiles.begin(tile); t < end; ++t) {
        const bool masked = p.mask(t);
        row8 grad[chunks], x[chunks], k[chunks], v[chunks];
        load(block, p, p.out_grad(t, i), grad);
        if (masked) {
          PORTILE_UNROLL
          for (int c = 0; c < chunks; ++c) {
            if (first(block, c) >= p.hidden) continue;
            (p.add_residual ? grad[c] : row8::zero()).template store<true>(p.x_grad(t, i) + first(block, c));
            row8::zero().template store<true>(p.k_grad(t, i) + first(block, c));
          }
        } else {
          load(block, p, p.v(t, 0), v);
          load(block, p, p.x(t, i), x);
          load(block, p, p.k(t, i), k);
          float sum[1] = {};
          PORTILE_UNROLL
          for (int c = 0; c < chunks; ++c) {
            PORTILE_UNROLL
            for (int j = 0; j < 8; ++j) sum[0] = ::fmaf(grad[c][j], v[c][j], sum[0]);
          }
          reduce_sums<true>(block, sum, scratch + turn * 16);
          turn ^= 1;
          const gate_slopes s = finish_slopes(p, t, i, sum[0]);
          PORTILE_UNROLL
          for (int c = 0; c < chunks; ++c) {
            if (first(block, c) >= p.hidden) continue;
            const raw8<float> w = raw8<float>::template load<true>(weights + first(block, c));
            float to[8];
            PORTILE_UNROLL
            for (int j = 0; j < 8; ++j) {
              to[j] = x_gradient(s, x[c][j], k[c][j], w[j], p.add_residual ? grad[c][j] : 0.0f);
              sums[c][j] = ::fmaf(s.q * x[c][j], k[c][j], sums[c][j]);
            }
            row8::from(to).template store<true>(p.x_grad(t, i) + first(block, c));
            PORTILE_UNROLL
            for (int j = 0; j < 8; ++j) to[j] = k_gradient(s, x[c][j], k[c][j], w[j]);
            row8::from(to).template store<true>(p.k_grad(t, i) + first(block, c));
          }
        }
        v_gradient(block, p, t, i, masked);
      }
      PORTILE_UNROLL
      for (int c = 0; c < chunks; ++c)
        if (first(block, c) < p.hidden)
          raw8<float>::from(sums[c]).template store<true>(p.partial + b * p.hidden + first(block, c));
    }
  }

 private:
  template <class Block>
  static PORTILE_DEVICE std::int64_t first(const Block& block, int c) {
    return std::int64_t{c * threads + block.thread()} * 8;
  }
  template <class Block>
  static PORTILE_DEVICE void load(const Block& block, const params& p, const bf16* row, row8 (&v)[chunks]) {
    PORTILE_UNROLL
    for (int c = 0; c < chunks; ++c)
      v[c] = first(block, c) < p.hidden ? row8::template load<true>(row + first(block, c)) : row8::zero();
  }
  /// The blocks of the other streams read the same rows of out_grad at about this time.
  template <class Block>
  static PORTILE_DEVICE void v_gradient(const Block& block, const params& p, std::int64_t t, std::int64_t i,
                                        bool masked) {
    const std::int64_t eights = p.hidden / 8, end = eights * (i + 1) / p.streams;
    for (std::int64_t e = eights * i / p.streams + block.thread(); e < end; e += threads) {
      float sum[8] = {};
      for (std::int64_t s = 0; s < p.streams && !masked; ++s) {
        const row8 grad = row8::template load<true>(p.out_grad(t, s) + e * 8);
        const float g = p.gate_score(t, s);
        PORTILE_UNROLL
        for (int j = 0; j < 8; ++j) sum[j] = ::fmaf(grad[j], g, sum[j]);
      }
      row8::from(sum).template store<true>(p.v_grad(t, 0) + e * 8);
    }
  }
};

// Any width and alignment, value by value, in three kernels: gradients of x and k, of v, of the weights.
struct gate_backward_values {
  static constexpr int threads = 256;
  static constexpr std::size_t shared_bytes = 16 * sizeof(float);
  using params = gate_backward_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t b = block.index(); b < p.tiles.tokens * p.streams; b += block.grid()) {
      const std::int64_t t = p.tiles.streams.quotient(b), i = b - t * p.tiles.streams.value();
      const bf16 *grad = p.out_grad(t, i), *x = p.x(t, i), *k = p.k(t, i), *v = p.v(t, 0);
      const float* w = p.weight(i, 0);
      if (p.mask(t)) {
        for (std::int64_t d = block.thread(); d < p.hidden; d += threads) {
          p.x_grad(t, i)[d] = p.add_residual ? grad[d] : bf16{0};
          p.k_grad(t, i)[d] = bf16{0};
        }
        if (block.thread() == 0) p.q[b] = 0;
        continue;
      }
      float sum[1] = {};
      for (std::int64_t d = block.thread(); d < p.hidden; d += threads)
        sum[0] = ::fmaf(load_value(grad, d), load_value(v, d), sum[0]);
      reduce_sums<true>(block, sum, block.template shared<float>());
      const gate_slopes s = finish_slopes(p, t, i, sum[0]);
      if (block.thread() == 0) p.q[b] = s.q;
      for (std::int64_t d = block.thread(); d < p.hidden; d += threads) {
        const float xd = load_value(x, d), kd = load_value(k, d);
        store_value(p.x_grad(t, i), d,
                    x_gradient(s, xd, kd, w[d], p.add_residual ? load_value(grad, d) : 0.0f));
        store_value(p.k_grad(t, i), d, k_gradient(s, xd, kd, w[d]));
      }
      block.barrier();
    }
  }
};
struct gate_backward_v {
  static constexpr int threads = 256;
  using params = gate_backward_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t t = block.index(); t < p.tiles.tokens; t += block.grid()) {
      const bool masked = p.mask(t);
      for (std::int64_t d = block.thread(); d < p.hidden; d += threads) {
        float sum = 0;
        for (std::int64_t i = 0; i < p.streams && !masked; ++i)
          sum = ::fmaf(load_value(p.out_grad(t, i), d), p.gate_score(t, i), sum);
        store_value(p.v_grad(t, 0), d, sum);
      }
    }
  }
};
struct gate_backward_weights {
  static constexpr int threads = 256;
  struct params : gate_backward_params {
    divider strips;  ///< of `threads` columns
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t blocks = p.tiles.blocks * p.strips.value();
    for (std::int64_t b = block.index(); b < blocks; b += block.grid()) {
      const std::int64_t part = p.strips.quotient(b);
      const std::int64_t d = (b - part * p.strips.value()) * threads + block.thread();
      if (d >= p.hidden) continue;
      const std::int64_t tile = p.tiles.streams.quotient(part), i = part - tile * p.tiles.streams.value();
      const std::int64_t end = p.tiles.begin(tile + 1);
      float sum = 0;
      for (std::int64_t t = p.tiles.begin(tile); t < end; ++t)
        if (!p.mask(t))
          sum = ::fmaf(p.q[t * p.streams + i] * load_value(p.x(t, i), d), load_value(p.k(t, i), d), sum);
      p.partial[part * p.hidden + d] = sum;
    }
  }
};

struct gate_backward_simt {
  static bool by_chunks(const engram::gate_backward& p) {
    const engram::keys_and_values given = engram::split_kv(p.kv, p.k, p.v),
                                  grads = engram::split_kv(p.kv_grad, p.k_grad, p.v_grad);
    const std::int64_t hidden = p.out_grad.extent(2);
    return hidden % 8 == 0 && hidden <= 8192 &&
           all_rows_aligned(p.out_grad, p.hidden_states, given.k, given.v, p.weight_fused,
                            p.hidden_states_grad, grads.k, grads.v);
  }
  /// Fixed by the shape, so that the sums do not depend on the device.
  static std::int64_t tiles(const engram::gate_backward& p) {
    const std::int64_t streams = std::max<std::int64_t>(p.out_grad.extent(1), 1);
    std::int64_t threads = 512;
    with_row_shape(p.out_grad.extent(2), [&]<int num_threads, int>() { threads = num_threads; });
    return std::min(p.out_grad.extent(0), std::max<std::int64_t>(resident_blocks(threads) / streams, 1));
  }
  static std::int64_t partial_values(const engram::gate_backward& p) {
    return numeric::align_up(tiles(p) * p.out_grad.extent(1) * p.out_grad.extent(2), 4);
  }
  static std::uint64_t workspace(const portile_device_info&, const engram::gate_backward& p) {
    const std::int64_t factors = by_chunks(p) ? 0 : p.out_grad.extent(0) * p.out_grad.extent(1);
    return static_cast<std::uint64_t>(partial_values(p) + factors) * sizeof(float);
  }
  static void launch(const context& c, const engram::gate_backward& p) {
    const engram::keys_and_values given = engram::split_kv(p.kv, p.k, p.v),
                                  grads = engram::split_kv(p.kv_grad, p.k_grad, p.v_grad);
    const std::int64_t tokens = p.out_grad.extent(0), streams = p.out_grad.extent(1),
                       hidden = p.out_grad.extent(2);
    const float size = static_cast<float>(hidden);
    auto* partial = static_cast<float*>(c.call.workspace);
    const gate_backward_params k{stream_rows<const bf16>(p.out_grad),
                                 stream_rows<const bf16>(p.hidden_states),
                                 stream_rows<const bf16>(given.k),
                                 stream_rows<const bf16>(given.v),
                                 stream_rows<const float>(p.weight_fused),
                                 stream_values<const float>(p.dot),
                                 stream_values<const float>(p.gate_score),
                                 stream_values<const float>(p.rstd_x),
                                 stream_values<const float>(p.rstd_k),
                                 stream_rows<bf16>(p.hidden_states_grad),
                                 stream_rows<bf16>(grads.k),
                                 stream_rows<bf16>(grads.v),
                                 token_mask(p.image_token_mask),
                                 token_tiles(tokens, tiles(p), streams),
                                 partial,
                                 partial ? partial + partial_values(p) : nullptr,
                                 streams,
                                 hidden,
                                 size,
                                 1.0f / ::sqrtf(size),
                                 static_cast<float>(p.clamp_value),
                                 p.add_residual};
    if (by_chunks(p) && streams > 0) {
      with_row_shape(hidden, [&]<int threads, int chunks>() {
        using kernel = gate_backward_chunks<threads, chunks>;
        gpu::launch<kernel>(c, k.tiles.blocks,
                            kernel::scratch_bytes + static_cast<std::size_t>(hidden) * sizeof(float), k);
      });
    } else {
      const std::int64_t strips = numeric::ceil_div(hidden, gate_backward_weights::threads);
      gpu::launch<gate_backward_values>(c, tokens * streams, gate_backward_values::shared_bytes, k);
      gpu::launch<gate_backward_v>(c, tokens, 0, k);
      gpu::launch<gate_backward_weights>(
          c, k.tiles.blocks * strips, 0,
          {k, divider(strips, std::max<std::int64_t>(k.tiles.blocks, 1) * strips)});
    }
    add_partial_rows<float>::launch(
        c, partial_rows(partial, streams * hidden, k.tiles.tiles, hidden, streams), streams, hidden,
        static_cast<float*>(p.weight_fused_grad.data), p.weight_fused_grad.stride(0), p.accumulate);
  }
};

}  // namespace

extern const portile_implementation engram_gate_backward_simt;
const portile_implementation engram_gate_backward_simt =
    make_simt<engram::gate_backward, gate_backward_simt>();

}  // namespace portile::gpu
