// The operations of engram that add up partial rows.
#include <portile/kernels/engram/grad_w_reduce.hpp>
#include <portile/kernels/engram/sinkhorn_col_update.hpp>
#include <portile/kernels/engram/sinkhorn_step_reduce.hpp>

#include "backends/gpu/column_sums.hpp"

namespace portile::gpu {
namespace {

/// step_reduce, and col_update, which gives the same sums and uses them at once.
struct sinkhorn_columns {
  static constexpr int threads = column_sums::threads;
  struct params {
    partial_rows partial;
    float *col_sumsq, *col_scale;  ///< each may be absent
    float ratio, eps;
    std::int64_t blocks;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t b = block.index(); b < p.blocks; b += block.grid()) {
      const std::int64_t d = b * p.partial.columns() + block.thread();
      const bool mine = block.thread() < p.partial.columns() && d < p.partial.cols;
      const float old = mine && p.col_scale ? p.col_scale[d] : 0.0f;
      const auto sum = static_cast<float>(column_sums::sum(block, p.partial, b * p.partial.columns()));
      if (mine) {
        if (p.col_sumsq) p.col_sumsq[d] = sum;
        const float scaled = sum * p.ratio;
        if (p.col_scale && scaled != 0) p.col_scale[d] = old / (::sqrtf(scaled) + p.eps);
      }
      block.barrier();
    }
  }
};

struct weight_gradients {
  static constexpr int threads = column_sums::threads;
  struct params {
    partial_rows partial;  ///< of stream 0
    std::int64_t partial_stream;
    const numeric::bf16 *hidden, *embed;
    float *hidden_grad, *embed_grad;
    std::int64_t hidden_stride, embed_stride, hidden_grad_stride, embed_grad_stride;
    std::int64_t blocks;
    divider tiles;
    bool accumulate;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t b = block.index(); b < p.blocks; b += block.grid()) {
      const std::int64_t i = p.tiles.quotient(b), first = (b - i * p.tiles.value()) * p.partial.columns();
      const std::int64_t d = first + block.thread();
      const bool mine = block.thread() < p.partial.columns() && d < p.partial.cols;
      float hidden = 0, embed = 0, old_hidden = 0, old_embed = 0;
      if (mine) {
        hidden = load_value(p.hidden + i * p.hidden_stride, d);
        embed = load_value(p.embed + i * p.embed_stride, d);
        if (p.accumulate) {
          old_hidden = p.hidden_grad[i * p.hidden_grad_stride + d];
          old_embed = p.embed_grad[i * p.embed_grad_stride + d];
        }
      }
      partial_rows partial = p.partial;
      partial.data += i * p.partial_stream;
      const auto a = static_cast<float>(column_sums::sum(block, partial, first));
      if (mine) {
        p.hidden_grad[i * p.hidden_grad_stride + d] = ::fmaf(a, embed, old_hidden);
        p.embed_grad[i * p.embed_grad_stride + d] = ::fmaf(a, hidden, old_embed);
      }
      block.barrier();
    }
  }
};

struct sinkhorn_columns_simt {
  template <class P>
  static void launch(const context& c, const P& p) {
    sinkhorn_columns::params k{};
    const tensor& partial = p.col_sumsq_partial;
    k.partial = partial_rows(static_cast<const float*>(partial.data), partial.stride(0), partial.extent(0),
                             partial.extent(1));
    if (p.col_sumsq.defined()) k.col_sumsq = static_cast<float*>(p.col_sumsq.data);
    if constexpr (requires { p.col_scale; }) {
      k.col_scale = static_cast<float*>(p.col_scale.data);
      k.ratio = static_cast<float>(p.ratio);
      k.eps = static_cast<float>(p.eps);
    }
    k.blocks = k.partial.blocks();
    gpu::launch<sinkhorn_columns>(c, k.blocks, column_sums::shared_bytes, k);
  }
};

struct grad_w_reduce_simt {
  static void launch(const context& c, const engram::grad_w_reduce& p) {
    weight_gradients::params k{};
    const tensor& partial = p.weight_fused_grad_partial;
    k.partial = partial_rows(static_cast<const float*>(partial.data), partial.stride(0), partial.extent(0),
                             partial.extent(2), partial.extent(1));
    k.partial.aligned = rows_aligned(partial, 16);
    k.partial_stream = partial.stride(1);
    k.hidden = static_cast<const numeric::bf16*>(p.weight_hidden.data);
    k.embed = static_cast<const numeric::bf16*>(p.weight_embed.data);
    k.hidden_grad = static_cast<float*>(p.weight_hidden_grad.data);
    k.embed_grad = static_cast<float*>(p.weight_embed_grad.data);
    k.hidden_stride = p.weight_hidden.stride(0);
    k.embed_stride = p.weight_embed.stride(0);
    k.hidden_grad_stride = p.weight_hidden_grad.stride(0);
    k.embed_grad_stride = p.weight_embed_grad.stride(0);
    k.accumulate = p.accumulate;
    const std::int64_t tiles = k.partial.blocks();
    k.blocks = partial.extent(1) * tiles;
    if (k.blocks == 0) return;
    k.tiles = divider(tiles, k.blocks);
    gpu::launch<weight_gradients>(c, k.blocks, column_sums::shared_bytes, k);
  }
};

}  // namespace

extern const portile_implementation engram_grad_w_reduce_simt, engram_sinkhorn_step_reduce_simt,
    engram_sinkhorn_col_update_simt;
const portile_implementation engram_grad_w_reduce_simt =
    make_simt<engram::grad_w_reduce, grad_w_reduce_simt>();
const portile_implementation engram_sinkhorn_step_reduce_simt =
    make_simt<engram::sinkhorn_step_reduce, sinkhorn_columns_simt>();
const portile_implementation engram_sinkhorn_col_update_simt =
    make_simt<engram::sinkhorn_col_update, sinkhorn_columns_simt>();

}  // namespace portile::gpu
