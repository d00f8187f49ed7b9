#include <portile/kernels/mhc/sinkhorn.hpp>
#include <portile/kernels/mhc/sinkhorn_backward.hpp>

#include "backends/gpu/mhc.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

/// A row of a token's matrix, and back. A lane without a row holds the last one.
template <int mult>
PORTILE_DEVICE void load_row(const float* p, bool aligned, float (&v)[mult]) {
  if (mult % 4 == 0 && aligned) {
    PORTILE_UNROLL
    for (int o = 0; o < mult; o += 4) {
      const words4 w = load16(p + o);
      PORTILE_UNROLL
      for (int i = 0; i < 4 && o + i < mult; ++i) v[o + i] = numeric::bits_float(w.w[i]);
    }
  } else {
    PORTILE_UNROLL
    for (int o = 0; o < mult; ++o) v[o] = p[o];
  }
}
template <int mult>
PORTILE_DEVICE void store_row(float* p, bool aligned, const float (&v)[mult]) {
  if constexpr (mult % 4 == 0) {
    if (aligned) return store_values<float, mult>(p, 0, v);
  }
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) p[o] = v[o];
}

/// Which token and row a thread has in a turn of the block.
template <int mult>
struct row_place {
  std::int64_t token, row;
  bool live;

  template <class Block>
  PORTILE_DEVICE row_place(const Block& block, std::int64_t first_token, std::int64_t tokens) {
    constexpr int lanes = sinkhorn_lanes<mult>;
    token = first_token + block.thread() / lanes;
    row = block.thread() % lanes;
    live = token < tokens && row < mult;
    if (token >= tokens) token = tokens - 1;
    if (row >= mult) row = mult - 1;
  }
};

struct sinkhorn_params {
  rows<const float> x, out_grad;
  rows<float> out;
  std::int64_t tokens, mult, repeat;
  float eps;
  bool aligned;
  int kept;  ///< backward: pairs of steps whose divisors fit shared memory
};

struct sinkhorn_kernel {
  static constexpr int threads = 128;
  using params = sinkhorn_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    with_mult(p.mult, [&](auto constant) {
      constexpr int mult = decltype(constant)::value;
      constexpr int tokens = threads / sinkhorn_lanes<mult>;
      for (std::int64_t first = block.index() * tokens; first < p.tokens; first += block.grid() * tokens) {
        const row_place<mult> at(block, first, p.tokens);
        float a[mult];
        load_row<mult>(p.x.at(at.token, at.row), p.aligned, a);
        sinkhorn_row<mult>(block, a, p.repeat, p.eps);
        if (at.live) store_row<mult>(p.out.at(at.token, at.row), p.aligned, a);
      }
    });
  }
};

/// Forward once, keeping each step's divisors; then back, each matrix rebuilt from the one after it. When not
/// all divisors fit, the last `kept` pairs of steps come first, and the way there is gone once more for those
/// before.
struct sinkhorn_backward_kernel {
  static constexpr int threads = 128;
  static constexpr int max_kept = 32;
  using params = sinkhorn_params;
  /// Divisors: of a lane's row, and of the column with the lane's number.
  static constexpr std::size_t bytes_kept = 2 * threads * sizeof(float);

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    with_mult(p.mult, [&](auto constant) { backward<decltype(constant)::value>(block, p); });
  }

  template <int mult, class Block>
  static PORTILE_DEVICE void backward(const Block& block, const params& p) {
    constexpr int lanes = sinkhorn_lanes<mult>, tokens = threads / lanes;
    float* const mine = block.template shared<float>() + block.thread();
    const int first_lane = block.lane() / lanes * lanes, number = block.lane() - first_lane;
    for (std::int64_t first = block.index() * tokens; first < p.tokens; first += block.grid() * tokens) {
      const row_place<mult> at(block, first, p.tokens);
      float a[mult], g[mult], divisor[mult];
      load_row<mult>(p.out_grad.at(at.token, at.row), p.aligned, g);

      // Pair 0 is the first step over columns alone, pair r a step over rows and one over columns.
      for (std::int64_t end = p.repeat; end > 0; end -= p.kept) {
        const std::int64_t begin = end > p.kept ? end - p.kept : 0;
        load_row<mult>(p.x.at(at.token, at.row), p.aligned, a);
        softmax_plus_eps(a, p.eps);
        for (std::int64_t r = 0; r < end; ++r) {
          const float row_divisor = r > 0 ? normalise_row(a, p.eps) : 1.0f;
          normalise_columns(block, a, p.eps, divisor);
          if (r < begin) continue;
          float* const kept = mine + (r - begin) * 2 * threads;
          kept[0] = row_divisor;
          float column = divisor[0];
          PORTILE_UNROLL
          for (int o = 1; o < mult; ++o) column = number == o ? divisor[o] : column;
          kept[threads] = column;
        }
        for (std::int64_t r = end - 1; r >= begin; --r) {
          const float* const kept = mine + (r - begin) * 2 * threads;
          const float column = kept[threads], row_divisor = kept[0];
          float slope[mult];
          PORTILE_UNROLL
          for (int o = 0; o < mult; ++o) {
            divisor[o] = block.shuffle(column, first_lane + o);
            a[o] *= divisor[o];
            slope[o] = g[o] * a[o];
          }
          float sums[mult];
          column_sums(block, slope, sums);
          PORTILE_UNROLL
          for (int o = 0; o < mult; ++o) g[o] = (g[o] - sums[o] / divisor[o]) / divisor[o];
          if (r == 0) continue;
          PORTILE_UNROLL
          for (int o = 0; o < mult; ++o) {
            a[o] *= row_divisor;
            slope[o] = g[o] * a[o];
          }
          const float sum = row_sum(slope) / row_divisor;
          PORTILE_UNROLL
          for (int o = 0; o < mult; ++o) g[o] = (g[o] - sum) / row_divisor;
        }
      }
      load_row<mult>(p.x.at(at.token, at.row), p.aligned,
                     a);  // from the cache: fewer registers than to keep it
      softmax_row(a);
      PORTILE_UNROLL
      for (int o = 0; o < mult; ++o) divisor[o] = g[o] * a[o];
      const float sum = row_sum(divisor);
      PORTILE_UNROLL
      for (int o = 0; o < mult; ++o) g[o] = (g[o] - sum) * a[o];
      if (at.live) store_row<mult>(p.out.at(at.token, at.row), p.aligned, g);
    }
  }
};

template <class Kernel, class P>
void start(const context& c, const P& p, const tensor& out_grad, const tensor& out, std::size_t shared_bytes,
           int kept) {
  const sinkhorn_params q{rows<const float>(p.x),
                          rows<const float>(out_grad),
                          rows<float>(out),
                          p.x.extent(0),
                          p.x.extent(1),
                          p.repeat,
                          static_cast<float>(p.eps),
                          whole_chunks(p.x) && whole_chunks(out_grad) && whole_chunks(out),
                          kept};
  gpu::launch<Kernel>(c, numeric::ceil_div(q.tokens, Kernel::threads / lanes_of(q.mult)), shared_bytes, q);
}

struct sinkhorn_simt {
  static void launch(const context& c, const mhc::sinkhorn& p) {
    start<sinkhorn_kernel>(c, p, {}, p.out, 0, 0);
  }
};

struct sinkhorn_backward_simt {
  static void launch(const context& c, const mhc::sinkhorn_backward& p) {
    using kernel = sinkhorn_backward_kernel;
    const auto kept = static_cast<int>(std::min<std::int64_t>(p.repeat, kernel::max_kept));
    start<kernel>(c, p, p.out_grad, p.x_grad, static_cast<std::size_t>(kept) * kernel::bytes_kept, kept);
  }
};

}  // namespace

extern const portile_implementation mhc_sinkhorn_simt;
const portile_implementation mhc_sinkhorn_simt = make_simt<mhc::sinkhorn, sinkhorn_simt>();
extern const portile_implementation mhc_sinkhorn_backward_simt;
const portile_implementation mhc_sinkhorn_backward_simt =
    make_simt<mhc::sinkhorn_backward, sinkhorn_backward_simt>();

}  // namespace portile::gpu
