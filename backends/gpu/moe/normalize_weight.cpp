#include <portile/kernels/moe/normalize_weight.hpp>

#include "backends/gpu/moe/routes.hpp"

namespace portile::gpu {
namespace {

struct normalize_params {
  const float* weights;
  float *denominator, *normalized;
  std::int64_t stride, tokens, k;
  bool butterfly;
};

/// A lane a slot; the lanes of a token are neighbours.
struct normalize_by_lanes {
  static constexpr int threads = 256;
  struct params : normalize_params {
    int lanes;  ///< of a token, a power of two
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t tokens = threads / p.lanes;  // of a block
    const int j = block.thread() % p.lanes, first_lane = block.lane() - j;
    for (std::int64_t base = block.index() * tokens; base < p.tokens; base += block.grid() * tokens) {
      const std::int64_t t = base + block.thread() / p.lanes;
      const bool live = t < p.tokens && j < p.k;
      const float w = live ? p.weights[t * p.k + j] : 0.0f;
      float sum = w;
      if (p.butterfly) {
        for (int m = p.lanes / 2; m > 0; m /= 2) sum = sum + block.shuffle_xor(sum, m);
        sum = 1e-20f + sum;
      } else {
        sum = 1e-20f;
        for (int i = 0; i < p.k; ++i) sum = sum + block.shuffle(w, first_lane + i);
      }
      if (live) p.normalized[t * p.stride + j] = w / sum;
      if (j == 0 && t < p.tokens) p.denominator[t] = sum;
    }
  }
};

/// Any number of slots, in their order: a thread a token.
struct normalize_in_order {
  static constexpr int threads = 256;
  using params = normalize_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t t = block.index() * threads + block.thread(); t < p.tokens;
         t += block.grid() * threads) {
      float sum = 1e-20f;
      for (std::int64_t j = 0; j < p.k; ++j) sum = sum + p.weights[t * p.k + j];
      p.denominator[t] = sum;
      for (std::int64_t j = 0; j < p.k; ++j) p.normalized[t * p.stride + j] = p.weights[t * p.k + j] / sum;
    }
  }
};

struct normalize_weight_simt {
  static void launch(const context& c, const moe::normalize_weight& p) {
    const normalize_params q{static_cast<const float*>(p.topk_weights.data),
                             static_cast<float*>(p.denominator.data),
                             static_cast<float*>(p.normalized.data),
                             p.normalized.stride(0),
                             p.topk_weights.extent(0),
                             p.topk_weights.extent(1),
                             p.sum_order == "butterfly"};
    if (q.k > 32)
      return gpu::launch<normalize_in_order>(c, numeric::ceil_div(q.tokens, normalize_in_order::threads), 0,
                                             q);
    const int lanes = slot_lanes(q.k);
    gpu::launch<normalize_by_lanes>(c, numeric::ceil_div(q.tokens, normalize_by_lanes::threads / lanes), 0,
                                    {q, lanes});
  }
};

}  // namespace

extern const portile_implementation moe_normalize_weight_simt;
const portile_implementation moe_normalize_weight_simt =
    make_simt<moe::normalize_weight, normalize_weight_simt>();

}  // namespace portile::gpu
