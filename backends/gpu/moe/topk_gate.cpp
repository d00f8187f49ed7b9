#include <portile/kernels/moe/topk_gate.hpp>

#include "backends/gpu/moe/topk.hpp"

namespace portile::gpu {
namespace {

struct topk_params {
  const float* scores;
  std::int64_t* topk_idx;
  std::int64_t tokens, experts, k;
  std::uint64_t* trap;
  bool require_finite;
};

PORTILE_DEVICE void report(const topk_params& p, std::int64_t index, float score) {
  if (numeric::is_nan(score))
    raise_trap(p.trap, 0, index);
  else if (p.require_finite && !numeric::is_finite(score))
    raise_trap(p.trap, 1, index);
}

/// A wave a token, `held` experts a lane, in registers: by candidates where few values stand out and none is
/// a NaN, else by rounds.
template <int held>
struct topk_in_registers {
  static constexpr int threads = 128, min_blocks = held <= 4 ? 12 : held == 8 ? 10 : 6;
  static constexpr int most_by_candidates = 16;  ///< more would not leave slots for values of the same lane
  struct params : topk_params {
    bool aligned;  ///< rows start at multiples of 16 bytes and hold a multiple of 4 scores
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * Block::num_waves;
    for (std::int64_t t = block.index() * Block::num_waves + block.wave(); t < p.tokens; t += step)
      if (p.k > most_by_candidates || !by_candidates(block, p, t)) by_rounds(block, p, t);
  }

 private:
  template <class Block>
  static PORTILE_DEVICE bool by_candidates(const Block& block, const params& p, std::int64_t t) {
    const float* row = p.scores + t * p.experts;
    const int run_shift = held % 4 == 0 && p.aligned ? 2 : 0;
    float x[held];
    const int experts = static_cast<int>(p.experts);
    load_spread(block, row, experts, p.aligned, -numeric::infinity(), x);
    float largest = x[0];
    PORTILE_UNROLL
    for (int i = 1; i < held; ++i) largest = max_or_nan(largest, x[i]);
    bool plain = !numeric::is_nan(largest);
    if (p.require_finite) {
      PORTILE_UNROLL
      for (int i = 0; i < held; ++i)
        plain = plain && (spread_index(block, i, run_shift) >= experts || numeric::is_finite(x[i]));
    }
    if (block.ballot(!plain) != 0) return false;

    const float bound = candidates<Block>::bound(block, largest, static_cast<int>(p.k));
    // Fewer lanes than k have scores, or all scores are -Inf.
    if (bound == -numeric::infinity()) return false;
    std::uint32_t marks = 0;
    PORTILE_UNROLL
    for (int i = 0; i < held; ++i)
      if (x[i] >= bound) marks |= 1u << i;
    candidates<Block> found(block);
    found.gather(block, marks, run_shift);
    if (found.count > Block::wave_size) return false;
    std::uint32_t key = 0, id = 0;
    if (block.lane() < found.count) {
      id = found.slots[block.lane()];
      key = numeric::rank_key(row[id]);
    }
    const int rank = found.rank(block, key, id);
    if (block.lane() < found.count && rank < p.k) p.topk_idx[t * p.k + rank] = id;
    return true;
  }

  /// Each lane sorts `held` consecutive experts, then k rounds take the largest of the lanes' heads: the
  /// first lane that has it holds the smallest id, so ties cost nothing.
  template <class Block>
  static PORTILE_DEVICE void by_rounds(const Block& block, const params& p, std::int64_t t) {
    const std::int64_t first_expert = std::int64_t{block.lane()} * held;
    const float* row = p.scores + t * p.experts;
    // Keys are one more than numeric::rank_key, so that 0 is left for experts that are not there or taken.
    std::uint32_t key[held], place[held];
    PORTILE_UNROLL
    for (int i = 0; i < held; ++i) {
      key[i] = 0;
      place[i] = static_cast<std::uint32_t>(i);
    }
    const auto take = [&](int i, float score) {
      key[i] = numeric::rank_key(score) + 1;
      report(p, t * p.experts + first_expert + i, score);
    };
    if (held % 4 == 0 && p.aligned) {
      PORTILE_UNROLL
      for (int i = 0; i < held; i += 4) {
        if (first_expert + i >= p.experts) continue;
        const words4 w = load16(row + first_expert + i);
        PORTILE_UNROLL
        for (int j = 0; j < 4; ++j)
          if (i + j < held) take(i + j, numeric::bits_float(w.w[j]));
      }
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < held; ++i)
        if (first_expert + i < p.experts) take(i, row[first_expert + i]);
    }
    sort_lane<held>(key, place);

    std::int64_t mine = 0;
    for (std::int64_t r = 0; r < p.k; ++r) {
      const std::int64_t taken = take_best<held>(block, key, place);
      const int slot = static_cast<int>(r % Block::wave_size);
      if (block.lane() == slot) mine = taken;
      // A full set of lanes, or the last round: store what they hold.
      if ((slot == Block::wave_size - 1 || r + 1 == p.k) && block.lane() <= slot)
        p.topk_idx[t * p.k + r - slot + block.lane()] = mine;
    }
  }
};

/// Any number of experts: a wave a token; each round looks through the row for the best score after the one
/// before.
struct topk_in_memory {
  static constexpr int threads = 128;
  using params = topk_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * Block::num_waves;
    for (std::int64_t t = block.index() * Block::num_waves + block.wave(); t < p.tokens; t += step) {
      const float* row = p.scores + t * p.experts;
      for (std::int64_t e = block.lane(); e < p.experts; e += Block::wave_size)
        report(p, t * p.experts + e, row[e]);
      std::uint32_t last_key = ~0u;
      std::int64_t last = -1;
      for (std::int64_t r = 0; r < p.k; ++r) {
        std::uint32_t key = 0,
                      turn = ~0u;  // the lane's best: its key + 1 and which of the lane's scores it is
        std::uint32_t i = 0;
        for (std::int64_t e = block.lane(); e < p.experts; e += Block::wave_size, ++i) {
          const std::uint32_t candidate = numeric::rank_key(row[e]) + 1;
          const bool left = candidate < last_key || (candidate == last_key && e > last);
          if (left && candidate > key) {
            key = candidate;
            turn = i;
          }
        }
        // Among equals the smallest id: the earliest turn, then the first lane.
        last_key = block.wave_max(key);
        const std::uint32_t earliest = ~block.wave_max(key == last_key ? ~turn : 0u);
        const int winner = first_lane(block.ballot(key == last_key && turn == earliest));
        last = std::int64_t{earliest} * Block::wave_size + winner;
        if (block.lane() == 0) p.topk_idx[t * p.k + r] = last;
      }
    }
  }
};

struct topk_gate_simt {
  static void launch(const context& c, const moe::topk_gate& p) {
    const topk_params common{static_cast<const float*>(p.scores.data),
                             static_cast<std::int64_t*>(p.topk_idx.data),
                             p.scores.extent(0),
                             p.scores.extent(1),
                             p.num_topk,
                             c.call.trap,
                             p.require_finite};
    const std::int64_t each = numeric::ceil_div(common.experts, c.call.device->wave_size);
    if (each <= 1) return in_registers<1>(c, common);
    if (each <= 2) return in_registers<2>(c, common);
    if (each <= 4) return in_registers<4>(c, common);
    if (each <= 8) return in_registers<8>(c, common);
    if (each <= 16) return in_registers<16>(c, common);
    gpu::launch<topk_in_memory>(c, blocks<topk_in_memory>(c, common), 0, common);
  }

 private:
  template <class K>
  static std::int64_t blocks(const context& c, const topk_params& p) {
    return numeric::ceil_div(p.tokens, K::threads / c.call.device->wave_size);
  }
  template <int held>
  static void in_registers(const context& c, const topk_params& p) {
    using kernel = topk_in_registers<held>;
    const bool aligned = p.experts % 4 == 0 && reinterpret_cast<std::uintptr_t>(p.scores) % 16 == 0;
    // A slot of eight bytes a thread.
    gpu::launch<kernel>(c, blocks<kernel>(c, p), kernel::threads * sizeof(std::uint64_t), {p, aligned});
  }
};

}  // namespace

extern const portile_implementation moe_topk_gate_simt;
const portile_implementation moe_topk_gate_simt = make_simt<moe::topk_gate, topk_gate_simt>();

}  // namespace portile::gpu
