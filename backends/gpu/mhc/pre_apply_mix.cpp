#include <portile/kernels/mhc/pre_apply_mix.hpp>
#include <portile/kernels/mhc/pre_apply_mix_backward.hpp>

#include "backends/gpu/mhc.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

/// A thread adds eight channels of every stream, weighted, in order.
template <bool aligned>
struct apply_kernel {
  static constexpr int threads = 256;
  struct params {
    rows<const bf16> x;
    rows<const float> mix;
    rows<bf16> out;
    std::int64_t mult, chunks;
    divider row_chunks;
    bool mix_aligned;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t at = block.index() * threads + block.thread(); at < p.chunks;
         at += block.grid() * threads) {
      const std::int64_t t = p.row_chunks.quotient(at), h = (at - t * p.row_chunks.value()) * chunk;
      float sum[chunk] = {};
      for (std::int64_t b = 0; b < p.mult; b += batch) {
        words4 w[batch];
        float weight[batch];
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i)
          if (b + i < p.mult) w[i] = load_chunk<aligned>(p.x.at(t, b + i) + h);
        load_weights(p.mix.at(t) + b, p.mult - b, p.mix_aligned, weight);
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i)
          if (b + i < p.mult) add_scaled(weight[i], w[i], sum);
      }
      store_chunk<aligned>(p.out.at(t) + h, round_chunk(sum));
    }
  }
};

/// A block takes up to four streams of a token: their gradients, and the products with the gradient of the
/// sum.
template <bool aligned>
struct apply_backward_kernel {
  static constexpr int threads = 256;
  struct params {
    rows<const bf16> x;
    rows<const float> mix;
    rows<const bf16> out_grad;
    rows<bf16> x_grad;  ///< without data: not wanted
    rows<float> mix_grad;
    std::int64_t mult, row_chunks, work;
    divider batches;  ///< of a token
    bool mix_aligned, accumulate;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    float* const scratch = block.template shared<float>();
    for (std::int64_t work = block.index(); work < p.work; work += block.grid()) {
      const std::int64_t t = p.batches.quotient(work);
      const std::int64_t b = (work - t * p.batches.value()) * batch;
      float weight[batch], sum[batch] = {};
      load_weights(p.mix.at(t) + b, p.mult - b, p.mix_aligned, weight);
      const bf16* const out_grad = p.out_grad.at(t);
      for (std::int64_t at = block.thread(); at < p.row_chunks; at += threads) {
        const std::int64_t h = at * chunk;
        words4 w[batch], old[batch];
        const words4 grad = load_chunk<aligned>(out_grad + h);
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i) {
          if (b + i >= p.mult) continue;
          w[i] = load_chunk<aligned>(p.x.at(t, b + i) + h);
          if (p.x_grad.data && p.accumulate) old[i] = load_chunk<aligned>(p.x_grad.at(t, b + i) + h);
        }
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i) {
          if (b + i >= p.mult) continue;
          float to[chunk];
          PORTILE_UNROLL
          for (int e = 0; e < chunk; ++e) {
            const float g = lane_value(grad, e);
            sum[i] = ::fmaf(g, lane_value(w[i], e), sum[i]);
            to[e] = p.accumulate ? ::fmaf(weight[i], g, lane_value(old[i], e)) : weight[i] * g;
          }
          if (p.x_grad.data) store_chunk<aligned>(p.x_grad.at(t, b + i) + h, round_chunk(to));
        }
      }
      PORTILE_UNROLL
      for (int i = 0; i < batch; ++i) sum[i] = reduce_wave(block, sum[i], plus{});
      block.barrier();
      if (block.lane() == 0) {
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i) scratch[block.wave() * batch + i] = sum[i];
      }
      block.barrier();
      const int i = block.thread();
      if (i < batch && b + i < p.mult) {
        float total = scratch[i];
        for (int w = 1; w < Block::num_waves; ++w) total += scratch[w * batch + i];
        p.mix_grad.at(t)[b + i] = total;
      }
    }
  }
};

struct pre_apply_mix_simt {
  static void launch(const context& c, const mhc::pre_apply_mix& p) {
    launch_apply_mix(c, p.x, rows<const float>(p.mix), whole_chunks(p.mix), p.out);
  }
};

struct pre_apply_mix_backward_simt {
  static void launch(const context& c, const mhc::pre_apply_mix_backward& p) {
    if (whole_chunks(p.x) && whole_chunks(p.out_grad) && whole_chunks(p.x_grad))
      start<true>(c, p);
    else
      start<false>(c, p);
  }

 private:
  template <bool aligned>
  static void start(const context& c, const mhc::pre_apply_mix_backward& p) {
    using kernel = apply_backward_kernel<aligned>;
    typename kernel::params q{};
    q.x = rows<const bf16>(p.x);
    q.mix = rows<const float>(p.mix);
    q.out_grad = rows<const bf16>(p.out_grad);
    if (p.x_grad) q.x_grad = rows<bf16>(p.x_grad);
    q.mix_grad = rows<float>(p.mix_grad);
    q.mult = p.x.extent(1);
    q.row_chunks = p.x.extent(2) / chunk;
    const std::int64_t batches = numeric::ceil_div(q.mult, batch);
    q.work = p.x.extent(0) * batches;
    q.batches = divider(batches, q.work);
    q.mix_aligned = whole_chunks(p.mix);
    q.accumulate = p.accumulate && p.x_grad;
    const int waves = kernel::threads / c.call.device->wave_size;
    gpu::launch<kernel>(c, q.work, static_cast<std::size_t>(waves * batch) * sizeof(float), q);
  }
};

}  // namespace

void mhc_steps::launch_apply_mix(const context& c, const tensor& x, const rows<const float>& mix,
                                 bool mix_aligned, const tensor& out) {
  const std::int64_t row_chunks = x.extent(2) / chunk, chunks = x.extent(0) * row_chunks;
  if (chunks == 0) return;
  const auto start = [&](auto aligned) {
    using kernel = apply_kernel<aligned.value>;
    const typename kernel::params p{rows<const bf16>(x), mix,    rows<bf16>(out),
                                    x.extent(1),         chunks, divider(row_chunks, chunks),
                                    mix_aligned};
    gpu::launch<kernel>(c, numeric::ceil_div(chunks, kernel::threads), 0, p);
  };
  if (whole_chunks(x) && whole_chunks(out))
    start(std::true_type{});
  else
    start(std::false_type{});
}

extern const portile_implementation mhc_pre_apply_mix_simt;
const portile_implementation mhc_pre_apply_mix_simt = make_simt<mhc::pre_apply_mix, pre_apply_mix_simt>();
extern const portile_implementation mhc_pre_apply_mix_backward_simt;
const portile_implementation mhc_pre_apply_mix_backward_simt =
    make_simt<mhc::pre_apply_mix_backward, pre_apply_mix_backward_simt>();

}  // namespace portile::gpu
