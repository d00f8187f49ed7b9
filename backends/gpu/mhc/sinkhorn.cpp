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
  bool aligned, in_range;
  bool huge;  ///< sums may overflow
  int kept;   ///< backward: pairs of steps whose divisors fit shared memory
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
        sinkhorn_row<mult>(block, a, p.repeat, p.eps, p.in_range);
        if (at.live) store_row<mult>(p.out.at(at.token, at.row), p.aligned, a);
      }
    });
  }
};

/// Forward once, keeping each step's divisors; then back, each matrix rebuilt from the one after it. When not
/// all divisors fit, the last `kept` pairs of steps come first, and the way there is gone once more for those
/// before. Quotients are products with reciprocals, which the result's tolerance allows.
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

  /// Sums of each column over the rows, in every lane.
  template <int mult, class Block>
  static PORTILE_DEVICE void sum_columns(const Block& block, const float (&a)[mult], float (&sum)[mult]) {
    if constexpr (mult == sinkhorn_lanes<mult>) {
      PORTILE_UNROLL
      for (int o = 0; o < mult; ++o) sum[o] = a[o];
      PORTILE_UNROLL
      for (int m = 1; m < mult; m *= 2) {
        PORTILE_UNROLL
        for (int o = 0; o < mult; ++o) sum[o] += block.shuffle_xor(sum[o], m);
      }
    } else {
      column_sums(block, a, sum);
    }
  }
  /// The kept divisors of all columns, of which the lane `number` has stored its own.
  template <int mult>
  static PORTILE_DEVICE void load_columns(const float* kept, int number, float (&divisor)[mult]) {
    kept -= number;
    if constexpr (mult % 4 == 0) {
      load_values<float, mult>(kept, 0, divisor);
    } else {
      PORTILE_UNROLL
      for (int o = 0; o < mult; ++o) divisor[o] = kept[o];
    }
  }

  template <int mult, class Block>
  static PORTILE_DEVICE void backward(const Block& block, const params& p) {
    constexpr int lanes = sinkhorn_lanes<mult>, tokens = threads / lanes;
    float* const mine = block.template shared<float>() + block.thread();
    const int number = block.lane() % lanes;
    for (std::int64_t first = block.index() * tokens; first < p.tokens; first += block.grid() * tokens) {
      const row_place<mult> at(block, first, p.tokens);
      float a[mult], g[mult], divisor[mult], soft[mult];
      load_row<mult>(p.x.at(at.token, at.row), p.aligned, soft);
      load_row<mult>(p.out_grad.at(at.token, at.row), p.aligned, g);
      softmax_row(soft);

      // Pair 0 is the first step over columns alone, pair r a step over rows and one over columns.
      for (std::int64_t end = p.repeat; end > 0; end -= p.kept) {
        const std::int64_t begin = end > p.kept ? end - p.kept : 0;
        PORTILE_UNROLL
        for (int o = 0; o < mult; ++o) a[o] = soft[o] + p.eps;
        PORTILE_NO_UNROLL
        for (std::int64_t r = 0; r < end; ++r) {
          float row_divisor = 1.0f;
          if (r > 0) {
            row_divisor = row_sum(a) + p.eps;
            const float y = inverse(row_divisor, p.in_range);
            PORTILE_UNROLL
            for (int o = 0; o < mult; ++o) a[o] *= y;
          }
          sum_columns(block, a, divisor);
          PORTILE_UNROLL
          for (int o = 0; o < mult; ++o) a[o] *= inverse(divisor[o] += p.eps, p.in_range);
          if (r < begin) continue;
          float* const kept = mine + (r - begin) * 2 * threads;
          kept[0] = row_divisor;
          float column = divisor[0];
          PORTILE_UNROLL
          for (int o = 1; o < mult; ++o) column = number == o ? divisor[o] : column;
          kept[threads] = column;
        }
        block.wave_barrier();  // a lane reads what the others of its token have kept
        PORTILE_NO_UNROLL
        for (std::int64_t r = end - 1; r >= begin; --r) {
          const float* const kept = mine + (r - begin) * 2 * threads;
          const float row_divisor = kept[0], row_inverse = inverse(row_divisor, p.in_range);
          load_columns<mult>(kept + threads, number, divisor);
          float slope[mult], sums[mult], entered[mult] = {};
          if (p.huge) rebuild<mult>(block, soft, p.eps, r, entered, a);
          PORTILE_UNROLL
          for (int o = 0; o < mult; ++o) {
            if (!p.huge) a[o] *= divisor[o];
            slope[o] = g[o] * a[o];
          }
          sum_columns(block, slope, sums);
          PORTILE_UNROLL
          for (int o = 0; o < mult; ++o) {
            const float y = inverse(divisor[o], p.in_range);
            g[o] = (g[o] - sums[o] * y) * y;
          }
          if (r == 0) continue;
          PORTILE_UNROLL
          for (int o = 0; o < mult; ++o) {
            a[o] = p.huge ? entered[o] : a[o] * row_divisor;
            slope[o] = g[o] * a[o];
          }
          const float sum = row_sum(slope) * row_inverse;
          PORTILE_UNROLL
          for (int o = 0; o < mult; ++o) g[o] = (g[o] - sum) * row_inverse;
        }
        block.wave_barrier();
      }
      PORTILE_UNROLL
      for (int o = 0; o < mult; ++o) divisor[o] = g[o] * soft[o];
      const float sum = row_sum(divisor);
      PORTILE_UNROLL
      for (int o = 0; o < mult; ++o) g[o] = (g[o] - sum) * soft[o];
      if (at.live) store_row<mult>(p.out.at(at.token, at.row), p.aligned, g);
    }
  }

  /// The matrices that enter pair r and its step over columns. Sums that overflow leave nothing to go back
  /// from.
  template <int mult, class Block>
  static PORTILE_DEVICE void rebuild(const Block& block, const float (&soft)[mult], float eps, std::int64_t r,
                                     float (&entered)[mult], float (&a)[mult]) {
    float divisor[mult];
    PORTILE_UNROLL
    for (int o = 0; o < mult; ++o) a[o] = soft[o] + eps;
    PORTILE_NO_UNROLL
    for (std::int64_t q = 0; q <= r; ++q) {
      PORTILE_UNROLL
      for (int o = 0; o < mult; ++o) entered[o] = a[o];
      if (q > 0) normalise_row<false>(a, eps);
      if (q < r) normalise_columns<false>(block, a, eps, divisor);
    }
  }
  static PORTILE_DEVICE float inverse(float divisor, bool in_range) {
    return in_range ? reciprocal_of_normal(divisor) : 1.0f / divisor;
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
                          sinkhorn_in_range(p.x.extent(1), p.repeat, p.eps),
                          p.eps > 0x1p+100,
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
