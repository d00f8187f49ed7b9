#include <portile/kernels/engram/gate.hpp>

#include <portile/core/numeric/elementary.hpp>

#include "backends/gpu/engram/gate_rows.hpp"

namespace portile::gpu {
namespace {

using numeric::bf16;

struct gate_params {
  stream_rows<const bf16> x, k, v;
  stream_rows<const float> weight;  ///< of stream 0: its "token" is the stream
  stream_rows<bf16> out;
  stream_values<float> dot, gate_score, rstd_x, rstd_k;
  token_mask mask;
  token_tiles tiles;
  std::int64_t hidden;
  float size, c, eps, clamp;
  bool add_residual;
};

/// From the sums of x^2, k^2 and x w k to the gate's score.
PORTILE_DEVICE float finish_gate(const gate_params& p, const float (&sums)[3], std::int64_t t, std::int64_t i,
                                 bool writes) {
  const float rx = 1.0f / ::sqrtf(sums[0] / p.size + p.eps), rk = 1.0f / ::sqrtf(sums[1] / p.size + p.eps);
  const float s = sums[2] * rx * rk * p.c;
  const float magnitude = ::fabsf(s) < p.clamp ? p.clamp : ::fabsf(s);  // NaN stays
  const float g = numeric::sigmoid_f32(::copysignf(::sqrtf(magnitude), s));
  if (writes) {
    p.dot.set(t, i, sums[2]);
    p.gate_score.set(t, i, g);
    p.rstd_x.set(t, i, rx);
    p.rstd_k.set(t, i, rk);
  }
  return g;
}
PORTILE_DEVICE void save_nothing(const gate_params& p, std::int64_t t, std::int64_t i) {
  for (const auto* saved : {&p.dot, &p.gate_score, &p.rstd_x, &p.rstd_k}) saved->set(t, i, 0);
}

/// A block keeps the weights of a stream and takes the tokens of its tile one after the other.
template <int num_threads, int chunks>
struct gate_chunks {
  static constexpr int threads = num_threads;
  static constexpr std::size_t shared_bytes = 2 * 16 * 3 * sizeof(float);
  using params = gate_params;
  using row8 = raw8<bf16>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* scratch = block.template shared<float>();
    int turn = 0;
    for (std::int64_t b = block.index(); b < p.tiles.blocks; b += block.grid()) {
      const std::int64_t tile = p.tiles.streams.quotient(b), i = b - tile * p.tiles.streams.value();
      raw8<float> w[chunks];
      PORTILE_UNROLL
      for (int c = 0; c < chunks; ++c) {
        const std::int64_t d = first(block, c);
        w[c] = d < p.hidden ? raw8<float>::template load<true>(p.weight(i, 0) + d) : raw8<float>::zero();
      }
      const std::int64_t end = p.tiles.begin(tile + 1);
      for (std::int64_t t = p.tiles.begin(tile); t < end; ++t) {
        const bool masked = p.mask(t);
        row8 x[chunks], k[chunks], v[chunks];
        load(block, p, p.x(t, i), x);
        if (masked) {
          PORTILE_UNROLL
          for (int c = 0; c < chunks; ++c)
            if (first(block, c) < p.hidden)
              (p.add_residual ? x[c] : row8::zero()).template store<true>(p.out(t, i) + first(block, c));
          if (block.thread() == 0) save_nothing(p, t, i);
          continue;
        }
        load(block, p, p.k(t, i), k);
        load(block, p, p.v(t, 0), v);
        float sums[3] = {};
        PORTILE_UNROLL
        for (int c = 0; c < chunks; ++c) {
          PORTILE_UNROLL
          for (int j = 0; j < 8; ++j) {
            const float xd = x[c][j], kd = k[c][j];
            sums[0] = ::fmaf(xd, xd, sums[0]);
            sums[1] = ::fmaf(kd, kd, sums[1]);
            sums[2] = ::fmaf(xd * w[c][j], kd, sums[2]);
          }
        }
        reduce_sums<true>(block, sums, scratch + turn * 16 * 3);
        turn ^= 1;
        const float g = finish_gate(p, sums, t, i, block.thread() == 0);
        PORTILE_UNROLL
        for (int c = 0; c < chunks; ++c) {
          float to[8];
          PORTILE_UNROLL
          for (int j = 0; j < 8; ++j) to[j] = p.add_residual ? ::fmaf(g, v[c][j], x[c][j]) : g * v[c][j];
          if (first(block, c) < p.hidden) row8::from(to).template store<true>(p.out(t, i) + first(block, c));
        }
      }
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
};

/// Any width and alignment: value by value, read twice.
struct gate_values {
  static constexpr int threads = 256;
  static constexpr std::size_t shared_bytes = 16 * 3 * sizeof(float);
  using params = gate_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t b = block.index(); b < p.tiles.blocks; b += block.grid()) {
      const std::int64_t t = p.tiles.streams.quotient(b), i = b - t * p.tiles.streams.value();
      const bf16 *x = p.x(t, i), *k = p.k(t, i), *v = p.v(t, 0);
      const float* w = p.weight(i, 0);
      bf16* out = p.out(t, i);
      if (p.mask(t)) {
        for (std::int64_t d = block.thread(); d < p.hidden; d += threads)
          out[d] = p.add_residual ? x[d] : bf16{0};
        if (block.thread() == 0) save_nothing(p, t, i);
        continue;
      }
      float sums[3] = {};
      for (std::int64_t d = block.thread(); d < p.hidden; d += threads) {
        const float xd = load_value(x, d), kd = load_value(k, d);
        sums[0] = ::fmaf(xd, xd, sums[0]);
        sums[1] = ::fmaf(kd, kd, sums[1]);
        sums[2] = ::fmaf(xd * w[d], kd, sums[2]);
      }
      reduce_sums<true>(block, sums, block.template shared<float>());
      const float g = finish_gate(p, sums, t, i, block.thread() == 0);
      for (std::int64_t d = block.thread(); d < p.hidden; d += threads)
        store_value(out, d,
                    p.add_residual ? ::fmaf(g, load_value(v, d), load_value(x, d)) : g * load_value(v, d));
      block.barrier();
    }
  }
};

struct gate_simt {
  static void launch(const context& c, const engram::gate& p) {
    const engram::keys_and_values given = engram::split_kv(p.kv, p.k, p.v);
    const std::int64_t tokens = p.out.extent(0), streams = p.out.extent(1), hidden = p.out.extent(2);
    if (tokens * streams == 0) return;
    const float size = static_cast<float>(hidden);
    gate_params k{stream_rows<const bf16>(p.hidden_states),
                  stream_rows<const bf16>(given.k),
                  stream_rows<const bf16>(given.v),
                  stream_rows<const float>(p.weight_fused),
                  stream_rows<bf16>(p.out),
                  stream_values<float>(p.dot),
                  stream_values<float>(p.gate_score),
                  stream_values<float>(p.rstd_x),
                  stream_values<float>(p.rstd_k),
                  token_mask(p.image_token_mask),
                  {},
                  hidden,
                  size,
                  1.0f / ::sqrtf(size),
                  static_cast<float>(p.eps),
                  static_cast<float>(p.clamp_value),
                  p.add_residual};
    const auto in_chunks = [&]<int threads, int chunks>() {
      using kernel = gate_chunks<threads, chunks>;
      // Enough tokens a block to pay for its weights, but all of the device at work.
      constexpr std::int64_t most_tokens = 16;
      const std::int64_t tiles =
          std::max(numeric::ceil_div(tokens, most_tokens),
                   std::min(tokens, numeric::ceil_div(resident_blocks(threads), streams)));
      k.tiles = token_tiles(tokens, tiles, streams);
      gpu::launch<kernel>(c, k.tiles.blocks, kernel::shared_bytes, k);
    };
    const bool aligned =
        hidden % 8 == 0 && all_rows_aligned(p.hidden_states, given.k, given.v, p.weight_fused, p.out);
    if (aligned && with_row_shape(hidden, in_chunks)) return;
    k.tiles = token_tiles(tokens, tokens, streams);
    gpu::launch<gate_values>(c, k.tiles.blocks, gate_values::shared_bytes, k);
  }
};

}  // namespace

extern const portile_implementation engram_gate_simt;
const portile_implementation engram_gate_simt = make_simt<engram::gate, gate_simt>();

}  // namespace portile::gpu
