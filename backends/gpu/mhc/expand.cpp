#include <portile/kernels/mhc/expand.hpp>
#include <portile/kernels/mhc/expand_backward.hpp>

#include "backends/gpu/mhc.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

/// A thread copies eight values of a token to every stream.
template <bool aligned>
struct expand_kernel {
  static constexpr int threads = 256;
  struct params {
    rows<const bf16> x;
    rows<bf16> out;
    std::int64_t mult, hidden, chunks;
    divider row_chunks;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t at = block.index() * threads + block.thread(); at < p.chunks;
         at += block.grid() * threads) {
      const std::int64_t t = p.row_chunks.quotient(at), h = (at - t * p.row_chunks.value()) * chunk;
      const words4 w = load_chunk<aligned>(p.x.at(t) + h, p.hidden - h);
      for (std::int64_t i = 0; i < p.mult; ++i) store_chunk<aligned>(p.out.at(t, i) + h, w, p.hidden - h);
    }
  }
};

/// A thread adds eight values of every stream, in order.
template <bool aligned>
struct expand_backward_kernel {
  static constexpr int threads = 256;
  struct params {
    rows<const bf16> out_grad;
    rows<bf16> x_grad;
    std::int64_t mult, hidden, chunks;
    divider row_chunks;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t at = block.index() * threads + block.thread(); at < p.chunks;
         at += block.grid() * threads) {
      const std::int64_t t = p.row_chunks.quotient(at), h = (at - t * p.row_chunks.value()) * chunk;
      float sum[chunk] = {};
      for (std::int64_t b = 0; b < p.mult; b += batch) {
        words4 w[batch];
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i)
          if (b + i < p.mult) w[i] = load_chunk<aligned>(p.out_grad.at(t, b + i) + h, p.hidden - h);
        PORTILE_UNROLL
        for (int i = 0; i < batch; ++i) {
          if (b + i >= p.mult) continue;
          PORTILE_UNROLL
          for (int e = 0; e < chunk; ++e) sum[e] += lane_value(w[i], e);
        }
      }
      store_chunk<aligned>(p.x_grad.at(t) + h, round_chunk(sum), p.hidden - h);
    }
  }
};

/// Launches Kernel<aligned> on rows `from` and `to`, one thread for each chunk of a token.
template <template <bool> class Kernel, class From, class To>
void launch_chunks(const context& c, const tensor& from, const tensor& to, std::int64_t mult,
                   std::int64_t hidden) {
  const std::int64_t row_chunks = numeric::ceil_div(hidden, chunk), chunks = to.extent(0) * row_chunks;
  if (chunks == 0) return;
  const auto start = [&](auto aligned) {
    using kernel = Kernel<aligned.value>;
    const typename kernel::params p{From(from), To(to), mult, hidden, chunks, divider(row_chunks, chunks)};
    gpu::launch<kernel>(c, numeric::ceil_div(chunks, kernel::threads), 0, p);
  };
  if (whole_chunks(from) && whole_chunks(to))
    start(std::true_type{});
  else
    start(std::false_type{});
}

struct expand_simt {
  static void launch(const context& c, const mhc::expand& p) {
    launch_chunks<expand_kernel, rows<const bf16>, rows<bf16>>(c, p.x, p.out, p.out.extent(1),
                                                               p.out.extent(2));
  }
};
struct expand_backward_simt {
  static void launch(const context& c, const mhc::expand_backward& p) {
    launch_chunks<expand_backward_kernel, rows<const bf16>, rows<bf16>>(
        c, p.out_grad, p.x_grad, p.out_grad.extent(1), p.x_grad.extent(1));
  }
};

}  // namespace

extern const portile_implementation mhc_expand_simt;
const portile_implementation mhc_expand_simt = make_simt<mhc::expand, expand_simt>();
extern const portile_implementation mhc_expand_backward_simt;
const portile_implementation mhc_expand_backward_simt =
    make_simt<mhc::expand_backward, expand_backward_simt>();

}  // namespace portile::gpu
