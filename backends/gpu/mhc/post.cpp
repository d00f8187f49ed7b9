#include <portile/kernels/mhc/post.hpp>
#include <portile/kernels/mhc/post_backward.hpp>

#include "backends/gpu/mhc.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

/// A thread computes eight channels of the new streams, four streams at a time; with more than four the old
/// ones are read again, from the cache.
template <bool aligned>
struct post_kernel {
  static constexpr int threads = 128;
  struct params {
    rows<const bf16> x, residual;
    rows<const float> post_mix, comb_mix;
    rows<bf16> out;
    std::int64_t mult, chunks;
    divider row_chunks;
    bool post_aligned, comb_aligned;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t at = block.index() * threads + block.thread(); at < p.chunks;
         at += block.grid() * threads) {
      const std::int64_t t = p.row_chunks.quotient(at), h = (at - t * p.row_chunks.value()) * chunk;
      const words4 x = load_chunk<aligned>(p.x.at(t) + h);
      for (std::int64_t first = 0; first < p.mult; first += batch) {
        float sum[batch][chunk];
        for (std::int64_t b = 0; b < p.mult; b += batch) {
          words4 w[batch];
          float comb[batch][batch], post[batch];
          PORTILE_UNROLL
          for (int i = 0; i < batch; ++i)
            if (b + i < p.mult) w[i] = load_chunk<aligned>(p.residual.at(t, b + i) + h);
          PORTILE_UNROLL
          for (int i = 0; i < batch; ++i)
            if (b + i < p.mult)
              load_weights(p.comb_mix.at(t, b + i) + first, p.mult - first, p.comb_aligned, comb[i]);
          if (b == 0) {
            load_weights(p.post_mix.at(t) + first, p.mult - first, p.post_aligned, post);
            PORTILE_UNROLL
            for (int o = 0; o < batch; ++o) {
              PORTILE_UNROLL
              for (int e = 0; e < chunk; ++e) sum[o][e] = post[o] * lane_value(x, e);
            }
          }
          PORTILE_UNROLL
          for (int i = 0; i < batch; ++i) {
            if (b + i >= p.mult) continue;
            PORTILE_UNROLL
            for (int o = 0; o < batch; ++o) add_scaled(comb[i][o], w[i], sum[o]);
          }
        }
        PORTILE_UNROLL
        for (int o = 0; o < batch; ++o)
          if (first + o < p.mult) store_chunk<aligned>(p.out.at(t, first + o) + h, round_chunk(sum[o]));
      }
    }
  }
};

/// Four streams and aligned rows. Half of the channels at a time: few registers, so that many threads wait
/// for memory at once.
struct post_four_kernel {
  static constexpr int threads = 256, min_blocks = 3;
  struct params {
    rows<const bf16> x, residual;
    rows<const float> post_mix, comb_mix;
    rows<bf16> out;
    std::int64_t chunks;
    divider row_chunks;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t at = block.index() * threads + block.thread(); at < p.chunks;
         at += block.grid() * threads) {
      const std::int64_t t = p.row_chunks.quotient(at), h = (at - t * p.row_chunks.value()) * chunk;
      const bf16* from = p.residual.at(t) + h;
      words4 w[batch], comb[batch];
      PORTILE_UNROLL
      for (int i = 0; i < batch; ++i) w[i] = load16(from + i * p.residual.stream);
      const words4 x = load16(p.x.at(t) + h), post = load16(p.post_mix.at(t));
      const float* const rows_of_comb = p.comb_mix.at(t);
      PORTILE_UNROLL
      for (int i = 0; i < batch; ++i) comb[i] = load16(rows_of_comb + i * p.comb_mix.stream);
      words4 to[batch];
      PORTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sum[batch][4];
        PORTILE_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float v = lane_value(x, half * 4 + e);
          PORTILE_UNROLL
          for (int o = 0; o < batch; ++o) sum[o][e] = numeric::bits_float(post.w[o]) * v;
        }
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i) {
          PORTILE_UNROLL
          for (int e = 0; e < 4; ++e) {
            const float v = lane_value(w[i], half * 4 + e);
            PORTILE_UNROLL
            for (int o = 0; o < batch; ++o)
              sum[o][e] = ::fmaf(numeric::bits_float(comb[i].w[o]), v, sum[o][e]);
          }
        }
        PORTILE_UNROLL
        for (int o = 0; o < batch; ++o) {
          to[o].w[half * 2] = to_bf16x2(sum[o][0], sum[o][1]);
          to[o].w[half * 2 + 1] = to_bf16x2(sum[o][2], sum[o][3]);
        }
      }
      bf16* const out = p.out.at(t) + h;
      PORTILE_UNROLL
      for (int o = 0; o < batch; ++o) store16(out + o * p.out.stream, to[o]);
    }
  }
};

/// A block takes the products of up to four old streams with up to four gradients of a token. The one with
/// the first gradients also computes the gradients of those old streams, over all of the others, and the one
/// with the first of both that of x.
template <bool aligned>
struct post_backward_kernel {
  static constexpr int threads = 128;
  static constexpr int dots = batch * batch + batch;
  struct params {
    rows<const bf16> x, residual, out_grad;
    rows<const float> post_mix, comb_mix;
    rows<bf16> x_grad, residual_grad;  ///< residual_grad without data: not wanted
    rows<float> post_mix_grad, comb_mix_grad;
    std::int64_t mult, row_chunks, work;
    divider batches, token_work;  ///< batches of streams; pairs of batches of a token
    bool post_aligned, comb_aligned;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    float* const scratch = block.template shared<float>();
    for (std::int64_t work = block.index(); work < p.work; work += block.grid()) {
      const std::int64_t t = p.token_work.quotient(work);
      const std::int64_t pair = work - t * p.token_work.value();
      const std::int64_t i0 = p.batches.quotient(pair) * batch;
      const std::int64_t o0 = (pair - i0 / batch * p.batches.value()) * batch;
      const bool with_x = i0 == 0;
      const bool x_grad = pair == 0, residual_grad = o0 == 0 && p.residual_grad.data;
      float post[batch] = {}, comb[batch][batch] = {};
      if (x_grad) load_weights(p.post_mix.at(t), p.mult, p.post_aligned, post);
      if (residual_grad) {
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i)
          if (i0 + i < p.mult) load_weights(p.comb_mix.at(t, i0 + i), p.mult, p.comb_aligned, comb[i]);
      }
      float dot[dots] = {};  // [i][o], then those of x

      for (std::int64_t at = block.thread(); at < p.row_chunks; at += threads) {
        const std::int64_t h = at * chunk;
        words4 grad[batch] = {}, old[batch] = {}, x{};
        PORTILE_UNROLL
        for (int o = 0; o < batch; ++o)
          if (o0 + o < p.mult) grad[o] = load_chunk<aligned>(p.out_grad.at(t, o0 + o) + h);
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i)
          if (i0 + i < p.mult) old[i] = load_chunk<aligned>(p.residual.at(t, i0 + i) + h);
        if (with_x) x = load_chunk<aligned>(p.x.at(t) + h);

        PORTILE_UNROLL
        for (int e = 0; e < chunk; ++e) {
          PORTILE_UNROLL
          for (int o = 0; o < batch; ++o) {
            const float g = lane_value(grad[o], e);
            PORTILE_UNROLL
            for (int i = 0; i < batch; ++i)
              dot[i * batch + o] = ::fmaf(lane_value(old[i], e), g, dot[i * batch + o]);
            dot[batch * batch + o] = ::fmaf(lane_value(x, e), g, dot[batch * batch + o]);
          }
        }
        if (x_grad) {
          float sum[chunk] = {};
          streams(p, t, h, grad, post, p.post_mix.at(t), p.post_aligned, sum);
          store_chunk<aligned>(p.x_grad.at(t) + h, round_chunk(sum));
        }
        if (residual_grad) {
          PORTILE_UNROLL
          for (int i = 0; i < batch; ++i) {
            if (i0 + i >= p.mult) continue;
            float sum[chunk] = {};
            streams(p, t, h, grad, comb[i], p.comb_mix.at(t, i0 + i), p.comb_aligned, sum);
            store_chunk<aligned>(p.residual_grad.at(t, i0 + i) + h, round_chunk(sum));
          }
        }
      }

      PORTILE_UNROLL
      for (int d = 0; d < dots; ++d) dot[d] = reduce_wave(block, dot[d], plus{});
      block.barrier();
      if (block.lane() == 0) {
        PORTILE_UNROLL
        for (int d = 0; d < dots; ++d) scratch[block.wave() * dots + d] = dot[d];
      }
      block.barrier();
      const int d = block.thread(), i = d / batch, o = d % batch;
      if (d < dots && o0 + o < p.mult) {
        float total = scratch[d];
        for (int w = 1; w < Block::num_waves; ++w) total += scratch[w * dots + d];
        if (i == batch && with_x) p.post_mix_grad.at(t)[o0 + o] = total;
        if (i < batch && i0 + i < p.mult) p.comb_mix_grad.at(t, i0 + i)[o0 + o] = total;
      }
    }
  }

  /// sum of the gradients of all new streams, weighted, in order; the first ones are at hand.
  static PORTILE_DEVICE void streams(const params& p, std::int64_t t, std::int64_t h,
                                     const words4 (&first)[batch], const float (&first_weight)[batch],
                                     const float* weights, bool weights_aligned, float (&sum)[chunk]) {
    PORTILE_UNROLL
    for (int o = 0; o < batch; ++o)
      if (o < p.mult) add_scaled(first_weight[o], first[o], sum);
    for (std::int64_t b = batch; b < p.mult; b += batch) {
      float weight[batch];
      load_weights(weights + b, p.mult - b, weights_aligned, weight);
      PORTILE_UNROLL
      for (int o = 0; o < batch; ++o)
        if (b + o < p.mult) add_scaled(weight[o], load_chunk<aligned>(p.out_grad.at(t, b + o) + h), sum);
    }
  }
};

struct post_simt {
  static void launch(const context& c, const mhc::post& p) {
    launch_post(c, p.x, p.residual, p.post_mix, p.comb_mix, p.out);
  }
};

struct post_backward_simt {
  static void launch(const context& c, const mhc::post_backward& p) {
    if (whole_chunks(p.x) && whole_chunks(p.residual) && whole_chunks(p.out_grad) && whole_chunks(p.x_grad) &&
        whole_chunks(p.residual_grad))
      start<true>(c, p);
    else
      start<false>(c, p);
  }

 private:
  template <bool aligned>
  static void start(const context& c, const mhc::post_backward& p) {
    using kernel = post_backward_kernel<aligned>;
    typename kernel::params q{};
    q.x = rows<const bf16>(p.x);
    q.residual = rows<const bf16>(p.residual);
    q.out_grad = rows<const bf16>(p.out_grad);
    q.post_mix = rows<const float>(p.post_mix);
    q.comb_mix = rows<const float>(p.comb_mix);
    q.x_grad = rows<bf16>(p.x_grad);
    if (p.residual_grad) q.residual_grad = rows<bf16>(p.residual_grad);
    q.post_mix_grad = rows<float>(p.post_mix_grad);
    q.comb_mix_grad = rows<float>(p.comb_mix_grad);
    q.mult = p.residual.extent(1);
    q.row_chunks = p.x.extent(1) / chunk;
    const std::int64_t batches = numeric::ceil_div(q.mult, batch);
    q.work = p.x.extent(0) * batches * batches;
    q.batches = divider(batches, batches * batches);
    q.token_work = divider(batches * batches, q.work);
    q.post_aligned = whole_chunks(p.post_mix);
    q.comb_aligned = whole_chunks(p.comb_mix);
    const int waves = kernel::threads / c.call.device->wave_size;
    gpu::launch<kernel>(c, q.work, static_cast<std::size_t>(waves * kernel::dots) * sizeof(float), q);
  }
};

}  // namespace

void mhc_steps::launch_post(const context& c, const tensor& x, const tensor& residual, const tensor& post_mix,
                            const tensor& comb_mix, const tensor& out) {
  const std::int64_t row_chunks = x.extent(1) / chunk, chunks = x.extent(0) * row_chunks;
  if (chunks == 0) return;
  const auto start = [&](auto aligned) {
    using kernel = post_kernel<aligned.value>;
    const typename kernel::params p{rows<const bf16>(x),
                                    rows<const bf16>(residual),
                                    rows<const float>(post_mix),
                                    rows<const float>(comb_mix),
                                    rows<bf16>(out),
                                    residual.extent(1),
                                    chunks,
                                    divider(row_chunks, chunks),
                                    whole_chunks(post_mix),
                                    whole_chunks(comb_mix)};
    gpu::launch<kernel>(c, numeric::ceil_div(chunks, kernel::threads), 0, p);
  };
  const bool aligned = whole_chunks(x) && whole_chunks(residual) && whole_chunks(out);
  if (aligned && residual.extent(1) == batch && whole_chunks(post_mix) && whole_chunks(comb_mix))
    gpu::launch<post_four_kernel>(
        c, numeric::ceil_div(chunks, post_four_kernel::threads), 0,
        {rows<const bf16>(x), rows<const bf16>(residual), rows<const float>(post_mix),
         rows<const float>(comb_mix), rows<bf16>(out), chunks, divider(row_chunks, chunks)});
  else if (aligned)
    start(std::true_type{});
  else
    start(std::false_type{});
}

extern const portile_implementation mhc_post_simt;
const portile_implementation mhc_post_simt = make_simt<mhc::post, post_simt>();
extern const portile_implementation mhc_post_backward_simt;
const portile_implementation mhc_post_backward_simt = make_simt<mhc::post_backward, post_backward_simt>();

}  // namespace portile::gpu
