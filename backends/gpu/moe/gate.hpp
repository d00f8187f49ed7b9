#pragma once
// The kernel of both gates, moe.top2_sum_gate and moe.moe_topk_gate_forward: a wave a token.
#include <portile/core/numeric/elementary.hpp>
#include <portile/core/numeric/philox.hpp>
#include <portile/kernels/moe/gate.hpp>

#include "backends/gpu/moe/routes.hpp"
#include "backends/gpu/moe/topk.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {

struct gate_params {
  const float* logits;
  std::int64_t tokens, experts;
  int k, slots;
  const float* bias;
  const std::uint8_t *mask, *fixed;
  physical_map to_physical;
  std::int64_t *unmapped, *topk_idx;
  float* topk_weights;
  std::int64_t unmapped_stride, idx_stride, weights_stride;
  float scale;
  std::uint64_t* trap;
  bool aligned;  ///< logits, biases and scores start at multiples of 16 bytes
  bool cached;   ///< keys of experts beyond the registers are kept in shared memory
  // top2_sum_gate
  moe::scoring how;
  int kept_groups, groups, group_size;  ///< 0 groups where none is dropped
  int shift;                            ///< fraction bits of a softmax's sum
  tensor_parallel_mask to_local;
  // moe_topk_gate_forward
  const float* image_bias;
  const std::uint8_t *image, *forced;
  float* scores;
};

/// Scores of a token's logits.
struct token_scores {
  moe::scoring how;
  float max = 0.0f, sum = 1.0f;  ///< of softmax

  PORTILE_DEVICE float operator()(float x) const {
    switch (how) {
      case moe::scoring::sigmoid:
        return numeric::sigmoid_f32(x);
      case moe::scoring::sqrtsoftplus:
        return numeric::sqrt_softplus_f32(x);
      default:
        return numeric::exp_f32(x - max) / sum;
    }
  }
};

/// sqrt(softplus(x)) for |x| <= estimated_logits within score_error of numeric::sqrt_softplus_f32, relative
/// to it. log(1 + e) is a series for small e, where 1 + e loses too much; either is within 2^-17 of the
/// softplus, and the root halves that.
inline constexpr float estimated_logits = 80.0f, score_error = 0x1p-17f;
PORTILE_DEVICE float score_estimate(float x) {
  const float e = exp2_estimate(x * 0x1.715476p+0f);
  const float series = e * ::fmaf(e, ::fmaf(e, 0x1.555556p-2f, -0.5f), 1.0f);
  return sqrt_estimate(e < 0x1p-5f ? series : log2_estimate(1.0f + e) * 0x1.62e43p-1f);
}

/// `held` consecutive experts a lane in registers; 0: any number of experts, in memory, the lanes in turns.
/// `routed`: the rules of top2_sum_gate, else those of moe_topk_gate_forward.
template <int held, bool routed>
struct gate {
  static constexpr int threads = 128, min_blocks = held <= 8 ? 8 : 5;
  static constexpr bool in_registers = held > 0;
  static constexpr int size = in_registers ? held : 1;
  static constexpr bool estimates = !routed && in_registers;
  using params = gate_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * Block::num_waves;
    for (std::int64_t t = block.index() * Block::num_waves + block.wave(); t < p.tokens; t += step)
      route(block, p, t);
  }

 private:
  template <class Block>
  static PORTILE_DEVICE void route(const Block& block, const params& p, std::int64_t t) {
    const float* const row = p.logits + t * p.experts;
    const std::int64_t first = std::int64_t{block.lane()} * held;
    const int lane = block.lane();
    float x[size];
    if constexpr (estimates) {
      load_spread(block, row, static_cast<int>(p.experts), p.aligned, 0.0f, x);
      const bool special = (p.mask && !p.mask[t]) || (p.fixed && p.fixed[t]) || (p.forced && p.forced[t]);
      if (!special && route_by_estimates(block, p, t, row, x)) return;
    }
    if constexpr (in_registers) load_own(p, row, first, x);
    const bool masked = p.mask && !p.mask[t];
    const bool fixed = p.fixed && p.fixed[t];
    bool random = false;
    if constexpr (!routed) random = !masked && p.forced && p.forced[t];

    std::int64_t id = -1;
    float weight = 0.0f;
    if (masked || random) {
      if constexpr (!routed) {
        if (random) route_randomly(block, p, t, id, weight);
        if (p.scores)
          for (std::int64_t e = lane; e < p.experts; e += Block::wave_size)
            p.scores[t * p.experts + e] = 0.0f;
      }
      if (p.unmapped && lane < p.k) p.unmapped[t * p.unmapped_stride + lane] = -1;
      store(p, t, lane, id, weight);
      return;
    }

    // What every logit has to be.
    each(block, p, row, x, [&](std::int64_t e, int, float v) {
      if (!numeric::is_finite(v)) raise_trap(p.trap, 0, t * p.experts + e);
    });
    const token_scores score = make_scores(block, p, row, x);
    if (fixed) {
      id = lane < p.k ? p.unmapped[t * p.unmapped_stride + lane] : -1;
      const bool in_range = id >= 0 && id < p.experts;
      if (!in_range && lane < p.k) raise_trap(p.trap, 1, t * p.k + lane);
      if (!in_range) id = -1;
    }
    if (!fixed || p.scores) {
      const std::int64_t selected = select(block, p, t, row, x, score, !fixed);
      if (!fixed) {
        id = selected;
        if (p.unmapped && lane < p.k) p.unmapped[t * p.unmapped_stride + lane] = id;
      }
    }

    finish(block, p, t, id, lane < p.k && id >= 0 ? score(row[id]) : 0.0f);
  }

  /// From the selected experts and their scores, a lane a slot, to what is stored.
  template <class Block>
  static PORTILE_DEVICE void finish(const Block& block, const params& p, std::int64_t t, std::int64_t id,
                                    float s) {
    const int lane = block.lane();
    const bool counted = lane < p.k && id >= 0 && numeric::is_finite(s);
    float sum = counted ? s : 0.0f;
    if constexpr (routed) {
      float in_order = 1e-20f;
      for (int j = 0; j < p.k; ++j) in_order = in_order + block.shuffle(sum, j);
      sum = in_order;
    } else {
      PORTILE_UNROLL
      for (int m = 16; m > 0; m /= 2) sum = sum + block.shuffle_xor(sum, m);
      sum = sum + 1e-20f;
    }
    float weight = counted ? s / sum * p.scale : 0.0f;
    if (lane >= p.k) {
      id = p.experts + (lane - p.k);
      weight = 1.0f;
    }
    if (lane < p.slots) {
      id = p.to_physical(id, t, p.trap, 2);
      if constexpr (routed) id = p.to_local(id);
    }
    store(p, t, lane, id, weight);
  }

  /// Routes a token whose logits are moderate numbers, x being its row: estimates of all scores, which are
  /// near enough to be stored, tell the few experts that can be among the best; these are scored in full.
  /// False: not routed.
  template <class Block>
  static PORTILE_DEVICE bool route_by_estimates(const Block& block, const params& p, std::int64_t t,
                                                const float* row, float (&x)[size]) {
    constexpr int most = 16;  // more would not leave slots for experts of the same lane
    if (p.k > most) return false;
    const int experts = static_cast<int>(p.experts), run_shift = held % 4 == 0 && p.aligned ? 2 : 0;
    float magnitude = 0.0f;
    PORTILE_UNROLL
    for (int i = 0; i < size; ++i) magnitude = max_or_nan(magnitude, ::fabsf(x[i]));
    if (block.ballot(!(magnitude <= estimated_logits)) != 0) return false;
    const float* const bias = bias_of(p, t);
    float b[size] = {};
    if (bias) load_spread(block, bias, experts, p.aligned, 0.0f, b);
    PORTILE_UNROLL
    for (int i = 0; i < size; ++i) x[i] = score_estimate(x[i]);
    if (p.scores) store_spread(block, p.scores + t * p.experts, experts, p.aligned, x);

    // A sum rounds to no less for a larger score, so the sums with both bounds of a score bound the sum with
    // it.
    float largest = -numeric::infinity();
    PORTILE_UNROLL
    for (int i = 0; i < size; ++i)
      if (spread_index(block, i, run_shift) < experts)
        largest = max_or_nan(largest, ::fmaf(x[i], 1.0f - score_error, b[i]));
    if (block.ballot(numeric::is_nan(largest)) != 0) return false;
    const float bound = candidates<Block>::bound(block, largest, p.k);
    if (bound == -numeric::infinity()) return false;
    std::uint32_t marks = 0;
    PORTILE_UNROLL
    for (int i = 0; i < size; ++i)
      if (spread_index(block, i, run_shift) < experts && ::fmaf(x[i], 1.0f + score_error, b[i]) >= bound)
        marks |= 1u << i;
    candidates<Block> found(block);
    found.gather(block, marks, run_shift);
    if (found.count > Block::wave_size) return false;

    std::uint32_t key = 0, id = 0;
    float s = 0.0f;
    if (block.lane() < found.count) {
      id = found.slots[block.lane()];
      s = numeric::sqrt_softplus_f32(row[id]);
      key = numeric::rank_key(bias ? s + bias[id] : s);
    }
    const int rank = found.rank(block, key, id);
    block.wave_barrier();
    if (block.lane() < found.count && rank < p.k) {
      found.slots[2 * rank] = id;
      found.slots[2 * rank + 1] = numeric::float_bits(s);
    }
    block.wave_barrier();
    const bool slot = block.lane() < p.k;
    const std::int64_t selected = slot ? found.slots[2 * block.lane()] : -1;
    if (p.unmapped && slot) p.unmapped[t * p.unmapped_stride + block.lane()] = selected;
    finish(block, p, t, selected, slot ? numeric::bits_float(found.slots[2 * block.lane() + 1]) : 0.0f);
    return true;
  }

  static PORTILE_DEVICE void store(const params& p, std::int64_t t, int lane, std::int64_t id, float weight) {
    if (lane >= p.slots) return;
    p.topk_idx[t * p.idx_stride + lane] = id;
    p.topk_weights[t * p.weights_stride + lane] = weight;
  }

  /// A lane's values of a row of experts; what is past the row stays undefined.
  static PORTILE_DEVICE void load_own(const params& p, const float* row, std::int64_t first,
                                      float (&v)[size]) {
    if (p.aligned) {
      PORTILE_UNROLL
      for (int i = 0; i < held; i += 4) {
        if (first + i >= p.experts) continue;
        const words4 w = load16(row + first + i);
        PORTILE_UNROLL
        for (int j = 0; j < 4; ++j) v[i + j] = numeric::bits_float(w.w[j]);
      }
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < held; ++i)
        if (first + i < p.experts) v[i] = row[first + i];
    }
  }

  static PORTILE_DEVICE const float* bias_of(const params& p, std::int64_t t) {
    // Both are read first: a choice between two places in the parameters would put those into memory.
    const float *const of_text = p.bias, *const of_image = p.image_bias;
    if constexpr (routed) return of_text;
    return p.image && p.image[t] ? +of_image : +of_text;
  }

  /// f(expert, its place in the lane, value) for the lane's experts.
  template <class Block, class F>
  static PORTILE_DEVICE void each(const Block& block, const params& p, const float* row,
                                  const float (&x)[size], F f) {
    if constexpr (in_registers) {
      const std::int64_t first = std::int64_t{block.lane()} * held;
      PORTILE_UNROLL
      for (int i = 0; i < held; ++i)
        if (first + i < p.experts) f(first + i, i, x[i]);
    } else {
      for (std::int64_t e = block.lane(); e < p.experts; e += Block::wave_size) f(e, 0, row[e]);
    }
  }

  template <class Block>
  static PORTILE_DEVICE token_scores make_scores(const Block& block, const params& p, const float* row,
                                                 const float (&x)[size]) {
    if constexpr (!routed) return {moe::scoring::sqrtsoftplus};
    token_scores score{p.how};
    if (p.how != moe::scoring::softmax) return score;
    std::uint32_t key = 0;
    each(block, p, row, x, [&](std::int64_t, int, float v) {
      const std::uint32_t other = numeric::rank_key(v);
      key = other > key ? other : key;
    });
    key = block.wave_max(key);
    score.max = key == 0 ? -numeric::infinity() : score_of_key(key);
    // In fixed point, so that the order of the lanes is no matter: no term is more than 1.
    std::uint64_t total = 0;
    const double one = static_cast<double>(std::uint64_t{1} << p.shift);
    each(block, p, row, x, [&](std::int64_t, int, float v) {
      const float distance = v - score.max;
      if (!numeric::is_nan(distance))
        total += static_cast<std::uint64_t>(static_cast<double>(numeric::exp_f32(distance)) * one);
    });
    total = reduce_wave(block, total, plus{});
    score.sum = static_cast<float>(static_cast<double>(total) / one);
    return score;
  }

  /// The expert of slot `lane`, and the scores stored where they are asked for.
  template <class Block>
  static PORTILE_DEVICE std::int64_t select(const Block& block, const params& p, std::int64_t t,
                                            const float* row, const float (&x)[size],
                                            const token_scores& score, bool wanted) {
    const float* const bias = bias_of(p, t);
    const auto key_of = [&](float v, float s, float b) {
      const float ranking = score.how == moe::scoring::softmax ? v : s;
      return numeric::rank_key(bias ? ranking + b : ranking) + 1;
    };
    std::uint32_t* const keys = shared_keys(block, p);
    std::int64_t mine = -1;
    if constexpr (in_registers) {
      const std::int64_t first = std::int64_t{block.lane()} * held;
      float b[held];
      std::uint32_t key[held], place[held];
      if (bias) load_own(p, bias, first, b);
      float s[held];
      PORTILE_UNROLL
      for (int i = 0; i < held; ++i) {
        const bool there = first + i < p.experts;
        s[i] = there && score.how != moe::scoring::softmax ? score(x[i]) : 0.0f;
        key[i] = there ? key_of(x[i], s[i], bias ? b[i] : 0.0f) : 0;
        place[i] = static_cast<std::uint32_t>(i);
      }
      if constexpr (!routed)
        if (p.scores) store_own(p, p.scores + t * p.experts, first, s);
      if (!wanted) return -1;
      if constexpr (routed) {
        if (p.groups > 0) {
          PORTILE_UNROLL
          for (int i = 0; i < held; ++i)
            if (first + i < p.experts) keys[first + i] = key[i];
          const std::uint32_t kept = kept_groups(block, p, keys);
          int g = static_cast<int>(first) / p.group_size,
              place_in_group = static_cast<int>(first) % p.group_size;
          PORTILE_UNROLL
          for (int i = 0; i < held; ++i) {
            if (g >= p.groups || (kept >> g & 1) == 0) key[i] = 0;
            if (++place_in_group == p.group_size) {
              place_in_group = 0;
              ++g;
            }
          }
        }
      }
      sort_lane<held>(key, place);
      for (int r = 0; r < p.k; ++r) {
        const std::int64_t best = take_best<held>(block, key, place);
        if (block.lane() == r) mine = best;
      }
    } else {
      const auto key_at = [&](std::int64_t e) {
        const float v = row[e], s = score.how == moe::scoring::softmax ? 0.0f : score(v);
        return key_of(v, s, bias ? bias[e] : 0.0f);
      };
      block.wave_barrier();  // before the keys of the last token are overwritten
      for (std::int64_t e = block.lane(); e < p.experts; e += Block::wave_size) {
        if (p.cached && wanted) keys[e] = key_at(e);
        if constexpr (!routed)
          if (p.scores) p.scores[t * p.experts + e] = score(row[e]);
      }
      if (!wanted) return -1;
      if constexpr (routed) {
        if (p.groups > 0) {
          const std::uint32_t kept = kept_groups(block, p, keys);
          for (std::int64_t e = block.lane(); e < p.experts; e += Block::wave_size)
            if ((kept >> (static_cast<int>(e) / p.group_size) & 1) == 0) keys[e] = 0;
        }
      }
      std::uint32_t last_key = ~0u;
      std::int64_t last = -1;
      for (int r = 0; r < p.k; ++r) {
        // The lane's best after the last one: its key and its turn. A lane looks at its own keys only.
        std::uint32_t key = 0, turn = ~0u, i = 0;
        for (std::int64_t e = block.lane(); e < p.experts; e += Block::wave_size, ++i) {
          const std::uint32_t candidate = p.cached ? keys[e] : key_at(e);
          const bool left = candidate < last_key || (candidate == last_key && e > last);
          if (left && candidate > key) {
            key = candidate;
            turn = i;
          }
        }
        last_key = block.wave_max(key);
        const std::uint32_t earliest = ~block.wave_max(key == last_key ? ~turn : 0u);
        last = std::int64_t{earliest} * Block::wave_size +
               first_lane(block.ballot(key == last_key && turn == earliest));
        if (block.lane() == r) mine = last;
      }
    }
    return mine;
  }

  static PORTILE_DEVICE void store_own(const params& p, float* row, std::int64_t first,
                                       const float (&v)[size]) {
    if (p.aligned) {
      PORTILE_UNROLL
      for (int i = 0; i < held; i += 4)
        if (first + i < p.experts)
          store16(row + first + i, {{numeric::float_bits(v[i]), numeric::float_bits(v[i + 1]),
                                     numeric::float_bits(v[i + 2]), numeric::float_bits(v[i + 3])}});
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < held; ++i)
        if (first + i < p.experts) row[first + i] = v[i];
    }
  }

  template <class Block>
  static PORTILE_DEVICE std::uint32_t* shared_keys(const Block& block, const params& p) {
    if (!p.cached && p.groups == 0) return nullptr;
    return block.template shared<std::uint32_t>() + block.wave() * p.experts;
  }

  /// Bit g: group g takes part. A lane's own keys are in shared memory before.
  template <class Block>
  static PORTILE_DEVICE std::uint32_t kept_groups(const Block& block, const params& p,
                                                  const std::uint32_t* keys) {
    block.wave_barrier();
    const int lanes = lanes_of_group<Block>(p.groups), g = block.lane() / lanes;
    best_two best;
    if (g < p.groups)
      for (int i = block.lane() % lanes; i < p.group_size; i += lanes) best.add(keys[g * p.group_size + i]);
    block.wave_barrier();
    std::uint32_t key[1] = {group_keys(block, best, lanes, p.groups, true)}, place[1] = {0};
    std::uint32_t kept = 0;
    for (int r = 0; r < p.kept_groups; ++r) kept |= std::uint32_t{1} << take_best<1>(block, key, place);
    return kept;
  }

  /// Slot `lane` of a token with random routes.
  template <class Block>
  static PORTILE_DEVICE void route_randomly(const Block& block, const params& p, std::int64_t t,
                                            std::int64_t& id, float& weight) {
    const std::int64_t logical = p.experts + (p.slots - p.k);
    std::int64_t physical = logical;
    if (p.to_physical.map) {
      physical = 0;
      for (std::int64_t e = block.lane(); e < logical; e += Block::wave_size)
        physical += p.to_physical.count[e];
      physical = reduce_wave(block, physical, plus{});
    }
    if (physical < p.slots) {
      if (block.lane() == 0) raise_trap(p.trap, 3, t);
      return;
    }
    const int j = block.lane() < p.slots ? block.lane() : 0;
    const auto words =
        numeric::philox4x32_10(p.to_physical.ep_rank, static_cast<std::uint64_t>(t * 32 + j), 0);
    weight = numeric::uniform_f32(words.w[0]);
    const auto draw = static_cast<std::int64_t>(words.w[1] % static_cast<std::uint64_t>(physical - j));
    for (int slot = 0; slot < p.slots; ++slot) {
      // The q-th free id is q plus the number of taken ids up to it: the smallest fixed point.
      const std::int64_t q = block.shuffle(draw, slot);
      std::int64_t candidate = q, next = q;
      do {
        candidate = next;
        next = q + count_lanes(block.ballot(block.lane() < slot && id <= candidate));
      } while (next != candidate);
      if (block.lane() == slot) id = candidate;
    }
  }
};

/// Parameters that both gates take alike.
template <class P>
gate_params common_gate_params(const context& c, const P& p) {
  const auto bytes = [](const tensor& t) {
    return t.defined() ? static_cast<const std::uint8_t*>(t.data) : nullptr;
  };
  gate_params q{};
  q.logits = static_cast<const float*>(p.logits.data);
  q.tokens = p.logits.extent(0);
  q.experts = p.logits.extent(1);
  q.k = static_cast<int>(p.num_topk);
  q.slots = q.k + static_cast<int>(moe::num_shared_slots(p));
  q.bias = reinterpret_cast<const float*>(bytes(p.bias));
  q.mask = bytes(p.mask);
  q.fixed = bytes(p.fix_routing_mask);
  q.to_physical = physical_map(p.to_physical_map, p.logical_count, p.ep_rank);
  if (p.unmapped_topk_idx.defined()) {
    q.unmapped = static_cast<std::int64_t*>(p.unmapped_topk_idx.data);
    q.unmapped_stride = p.unmapped_topk_idx.stride(0);
  }
  q.topk_idx = static_cast<std::int64_t*>(p.topk_idx.data);
  q.topk_weights = static_cast<float*>(p.topk_weights.data);
  q.idx_stride = p.topk_idx.stride(0);
  q.weights_stride = p.topk_weights.stride(0);
  q.scale = static_cast<float>(p.routed_scaling_factor);
  q.trap = c.call.trap;
  return q;
}

template <bool routed>
void launch_gate(const context& c, gate_params q) {
  const int wave_size = c.call.device->wave_size;
  const auto aligned = [](const float* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  q.aligned = aligned(q.logits) && aligned(q.bias) && aligned(q.image_bias) && aligned(q.scores);
  const auto by = [&]<int held>(std::integral_constant<int, held>) {
    using kernel = gate<held, routed>;
    const int waves = kernel::threads / wave_size;
    const std::size_t keys = static_cast<std::size_t>(q.experts) * 4 * static_cast<std::size_t>(waves);
    q.cached = held == 0 && keys <= 48 * 1024;
    const std::size_t slots = kernel::estimates ? kernel::threads * sizeof(std::uint64_t) : 0;
    gpu::launch<kernel>(c, numeric::ceil_div(q.tokens, waves), q.cached || q.groups > 0 ? keys : slots, q);
  };
  const std::int64_t each = numeric::ceil_div(q.experts, wave_size);
  if (each <= 4) return by(std::integral_constant<int, 4>{});
  if (each <= 8) return by(std::integral_constant<int, 8>{});
  if (each <= 16) return by(std::integral_constant<int, 16>{});
  by(std::integral_constant<int, 0>{});
}

}  // namespace portile::gpu
