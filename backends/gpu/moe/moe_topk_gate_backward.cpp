#include <portile/kernels/moe/moe_topk_gate_backward.hpp>

#include <portile/core/numeric/elementary.hpp>

#include "backends/gpu/reduce.hpp"
#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// d sqrt(softplus(x)) / dx as a function of the score y: (1 - exp(-y^2)) / (2 y). The difference cancels for
/// small y, where the polynomial takes over. Finite for every y that is not NaN.
PORTILE_DEVICE float sqrt_softplus_slope(float y) {
  const float v = y * y;
  if (!(v < 1.0f)) return (1.0f - numeric::exp_f32(-v)) / (2.0f * y);
  float q = 1.29130945e-4f;
  q = ::fmaf(q, v, -1.30112655e-3f);
  q = ::fmaf(q, v, 8.27621203e-3f);
  q = ::fmaf(q, v, -4.1647464e-2f);
  q = ::fmaf(q, v, 0.166663632f);
  q = ::fmaf(q, v, -0.499999821f);
  return 0.5f * y * ::fmaf(v, q, 1.0f);
}

/// 32 lanes a token on every device, so that sums in double have one order; lane j has slot j.
struct gate_backward {
  static constexpr int threads = 256, team = 32;
  struct params {
    const float *scores, *weights, *weights_grad, *sum_grad;
    const std::int64_t* topk_idx;
    const std::uint8_t* mask;
    float* logits_grad;
    std::int64_t tokens, experts;
    int k;
    divider tokens_per_seq;
    double scale;
    bool aligned;  ///< rows of experts start at multiples of 16 bytes and hold a multiple of 4
    std::uint64_t* trap;
  };

  /// What the aux term adds to an expert of the token, given h: (h - mean) * inverse.
  struct aux_term {
    double mean = 0.0, inverse = 0.0;
    bool on = false;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    constexpr int teams = threads / team;
    const int lane = block.thread() % team;
    const int first_lane = block.lane() - lane;
    // The teams of a wave go on together: they shuffle.
    for (std::int64_t base = block.index() * teams; base < p.tokens; base += block.grid() * teams) {
      const std::int64_t t = base + block.thread() / team;
      const bool live = t < p.tokens;
      const float* const row = p.scores + t * p.experts;
      const float* const h =
          p.sum_grad && live ? p.sum_grad + p.tokens_per_seq.quotient(t) * p.experts : nullptr;
      const aux_term aux = make_aux(block, p, row, h, live && p.mask && p.mask[t], lane);

      // The slots: lane j's part of the gradient of its expert.
      std::int64_t id = -1;
      float weight = 0.0f, grad = 0.0f, score = 0.0f;
      if (live && lane < p.k) {
        const std::int64_t at = t * p.k + lane;
        id = p.topk_idx[at];
        weight = p.weights[at];
        grad = p.weights_grad[at];
        if (id >= p.experts) {
          raise_trap(p.trap, 0, at);
          id = -1;
        }
        if (id >= 0) score = row[id];
      }
      const bool routed = id >= 0;
      const double denominator = 1e-20 + sum_team(block, routed ? double{score} : 0.0);
      const double weighted = sum_team(block, routed ? double{grad} * weight : 0.0);
      const double part = routed ? (p.scale * grad - weighted) / denominator : 0.0;
      double slots = 0.0;
      bool first = true;  // of the slots with this expert: the one that stores
      for (int j = 0; j < p.k; ++j) {
        const std::int64_t other = block.shuffle(id, first_lane + j);
        const double value = block.shuffle(part, first_lane + j);
        if (other == id) slots += value;
        if (other == id && j < lane) first = false;
      }

      if (live) store_row(p, t, row, h, aux, lane);
      block.wave_barrier();  // the row's own values go over what the row got
      if (live && routed && first) {
        const double r = slots + (aux.on ? (h[id] - aux.mean) * aux.inverse : 0.0);
        p.logits_grad[t * p.experts + id] = 0.0f + static_cast<float>(r * sqrt_softplus_slope(score));
      }
      block.wave_barrier();
    }
  }

 private:
  template <class Block>
  static PORTILE_DEVICE double sum_team(const Block& block, double v) {
    return reduce_lanes(block, v, team, plus{});
  }

  /// f(expert, value of each row) for the lane's experts: runs of four, the lanes in turns.
  template <class F>
  static PORTILE_DEVICE void each_four(const params& p, int lane, F f) {
    for (std::int64_t e = std::int64_t{lane} * 4; e < p.experts; e += team * 4) f(e);
  }
  static PORTILE_DEVICE void load_four(const params& p, const float* row, std::int64_t e, float (&v)[4]) {
    if (p.aligned) {
      const words4 w = load16(row + e);
      PORTILE_UNROLL
      for (int i = 0; i < 4; ++i) v[i] = numeric::bits_float(w.w[i]);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < 4; ++i) v[i] = e + i < p.experts ? row[e + i] : 0.0f;
    }
  }

  template <class Block>
  static PORTILE_DEVICE aux_term make_aux(const Block& block, const params& p, const float* row,
                                          const float* h, bool on, int lane) {
    if (!p.sum_grad) return {};
    double total = 0.0, dot = 0.0;
    if (on) {
      each_four(p, lane, [&](std::int64_t e) {
        float u[4], g[4];
        load_four(p, row, e, u);
        load_four(p, h, e, g);
        PORTILE_UNROLL
        for (int i = 0; i < 4; ++i) {
          total += u[i];
          dot += static_cast<double>(g[i]) * u[i];
        }
      });
    }
    total = sum_team(block, total);
    dot = sum_team(block, dot);
    if (!on || total == 0.0) return {};
    return {dot / total, 1.0 / total, true};
  }

  /// The row without its slots: the aux term, or zeros; NaN where the score is NaN.
  static PORTILE_DEVICE void store_row(const params& p, std::int64_t t, const float* row, const float* h,
                                       const aux_term& aux, int lane) {
    float* const out = p.logits_grad + t * p.experts;
    each_four(p, lane, [&](std::int64_t e) {
      float u[4], g[4] = {}, v[4];
      load_four(p, row, e, u);
      if (aux.on) load_four(p, h, e, g);
      PORTILE_UNROLL
      for (int i = 0; i < 4; ++i) {
        // A term of 0 times a finite slope; only NaN shows.
        v[i] = numeric::is_nan(u[i]) ? numeric::quiet_nan() : 0.0f;
        if (aux.on)
          v[i] = 0.0f + static_cast<float>((g[i] - aux.mean) * aux.inverse * sqrt_softplus_slope(u[i]));
      }
      if (p.aligned) {
        store_values<float, 4>(out, e, v);
      } else {
        PORTILE_UNROLL
        for (int i = 0; i < 4; ++i)
          if (e + i < p.experts) out[e + i] = v[i];
      }
    });
  }
};

struct moe_topk_gate_backward_simt {
  static void launch(const context& c, const moe::moe_topk_gate_backward& p) {
    gate_backward::params q{};
    q.scores = static_cast<const float*>(p.scores.data);
    q.weights = static_cast<const float*>(p.topk_weights.data);
    q.weights_grad = static_cast<const float*>(p.topk_weights_grad.data);
    q.topk_idx = static_cast<const std::int64_t*>(p.topk_idx.data);
    q.logits_grad = static_cast<float*>(p.logits_grad.data);
    q.tokens = p.scores.extent(0);
    q.experts = p.scores.extent(1);
    q.k = static_cast<int>(p.topk_idx.extent(1));
    q.scale = static_cast<float>(p.routed_scaling_factor);
    q.trap = c.call.trap;
    if (p.scores_sum_grad.defined()) {
      q.sum_grad = static_cast<const float*>(p.scores_sum_grad.data);
      q.mask = static_cast<const std::uint8_t*>(p.mask.data);
      q.tokens_per_seq = divider(std::max<std::int64_t>(1, q.tokens / p.scores_sum_grad.extent(0)), q.tokens);
    }
    const auto aligned = [](const float* x) { return reinterpret_cast<std::uintptr_t>(x) % 16 == 0; };
    q.aligned = q.experts % 4 == 0 && aligned(q.scores) && aligned(q.logits_grad) && aligned(q.sum_grad);
    gpu::launch<gate_backward>(c, numeric::ceil_div(q.tokens, gate_backward::threads / gate_backward::team),
                               0, q);
  }
};

}  // namespace

extern const portile_implementation moe_moe_topk_gate_backward_simt;
const portile_implementation moe_moe_topk_gate_backward_simt =
    make_simt<moe::moe_topk_gate_backward, moe_topk_gate_backward_simt>();

}  // namespace portile::gpu
