#include <portile/kernels/mhc/fn_normw_merge.hpp>
#include <portile/kernels/mhc/fn_normw_merge_backward.hpp>

#include "backends/gpu/mhc.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

/// A thread multiplies `width` neighbouring values of a row: 4, or 1 for any address.
template <int width>
struct merge_kernel {
  static constexpr int threads = 256;
  struct params {
    rows<const float> fn;
    const float* norm_weight;
    rows<float> out;
    std::int64_t pieces;
    divider row_pieces;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t at = block.index() * threads + block.thread(); at < p.pieces;
         at += block.grid() * threads) {
      const std::int64_t j = p.row_pieces.quotient(at), k = (at - j * p.row_pieces.value()) * width;
      if constexpr (width == 4) {
        float a[4], w[4];
        load_values<float, 4>(p.fn.at(j), k, a);
        load_values<float, 4>(p.norm_weight, k, w);
        PORTILE_UNROLL
        for (int i = 0; i < 4; ++i) a[i] *= w[i];
        store_values<float, 4>(p.out.at(j), k, a);
      } else {
        p.out.at(j)[k] = p.fn.at(j)[k] * p.norm_weight[k];
      }
    }
  }
};

/// A thread takes a column.
struct merge_backward_kernel {
  static constexpr int threads = 128;
  struct params {
    rows<const float> out_grad;
    std::int64_t columns;
    merge_gradients to;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t k = block.index() * threads + block.thread(); k < p.columns;
         k += block.grid() * threads)
      p.to.add(k, [&](std::int64_t j) { return p.out_grad.at(j)[k]; });
  }
};

struct fn_normw_merge_simt {
  static void launch(const context& c, const mhc::fn_normw_merge& p) {
    if (whole_chunks(p.fn) && whole_chunks(p.norm_weight) && whole_chunks(p.out))
      start<4>(c, p);
    else
      start<1>(c, p);
  }

 private:
  template <int width>
  static void start(const context& c, const mhc::fn_normw_merge& p) {
    using kernel = merge_kernel<width>;
    const std::int64_t row_pieces = p.fn.extent(1) / width, pieces = p.fn.extent(0) * row_pieces;
    if (pieces == 0) return;
    const typename kernel::params q{rows<const float>(p.fn), static_cast<const float*>(p.norm_weight.data),
                                    rows<float>(p.out), pieces, divider(row_pieces, pieces)};
    gpu::launch<kernel>(c, numeric::ceil_div(pieces, kernel::threads), 0, q);
  }
};

struct fn_normw_merge_backward_simt {
  static void launch(const context& c, const mhc::fn_normw_merge_backward& p) {
    launch_merge_backward(c, rows<const float>(p.out_grad), p.fn.extent(1),
                          merge_gradients(p.fn_grad, p.norm_weight_grad, p.fn, p.norm_weight, p.accumulate));
  }
};

}  // namespace

void mhc_steps::launch_merge_backward(const context& c, const rows<const float>& out_grad,
                                      std::int64_t columns, const merge_gradients& to) {
  if (!to.fn_grad && !to.norm_weight_grad) return;
  gpu::launch<merge_backward_kernel>(c, numeric::ceil_div(columns, merge_backward_kernel::threads), 0,
                                     {out_grad, columns, to});
}

extern const portile_implementation mhc_fn_normw_merge_simt;
const portile_implementation mhc_fn_normw_merge_simt = make_simt<mhc::fn_normw_merge, fn_normw_merge_simt>();
extern const portile_implementation mhc_fn_normw_merge_backward_simt;
const portile_implementation mhc_fn_normw_merge_backward_simt =
    make_simt<mhc::fn_normw_merge_backward, fn_normw_merge_backward_simt>();

}  // namespace portile::gpu
