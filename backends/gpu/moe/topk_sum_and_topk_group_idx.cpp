#include <portile/kernels/moe/topk_sum_and_topk_group_idx.hpp>

#include "backends/gpu/moe/routes.hpp"
#include "backends/gpu/moe/topk.hpp"

namespace portile::gpu {
namespace {

/// A wave a token. Up to a wave's groups: each gets as many neighbouring lanes as there are, a power of two,
/// and its key ends up in the lane of its number. More groups: lanes take turns, and each round looks at all
/// groups again.
struct topk_groups {
  static constexpr int threads = 128;
  struct params {
    const float* scores;
    std::int64_t* topk_group_idx;
    std::int64_t tokens, groups, size, kept;
    bool sum_of_two;
    std::uint64_t* trap;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * Block::num_waves;
    for (std::int64_t t = block.index() * Block::num_waves + block.wave(); t < p.tokens; t += step) {
      if (p.groups <= Block::wave_size)
        one_each(block, p, t);
      else
        in_turns(block, p, t);
    }
  }

 private:
  /// Adds the scores i, i + step, ... of a group.
  static PORTILE_DEVICE void add_scores(const params& p, std::int64_t group, int i, int step, bool report,
                                        best_two& best) {
    constexpr int batch = 8;
    const float* row = p.scores + group * p.size;
    for (std::int64_t at = i; at < p.size; at += batch * step) {
      float v[batch];
      PORTILE_UNROLL
      for (int u = 0; u < batch; ++u)
        if (at + u * step < p.size) v[u] = row[at + u * step];
      PORTILE_UNROLL
      for (int u = 0; u < batch; ++u) {
        if (at + u * step >= p.size) continue;
        best.add(numeric::rank_key(v[u]) + 1);
        if (report && numeric::is_nan(v[u])) raise_trap(p.trap, 0, group * p.size + at + u * step);
      }
    }
  }

  template <class Block>
  static PORTILE_DEVICE void one_each(Block& block, const params& p, std::int64_t t) {
    const int lanes = lanes_of_group<Block>(p.groups);
    best_two best;
    const int g = block.lane() / lanes;
    if (g < p.groups) add_scores(p, t * p.groups + g, block.lane() % lanes, lanes, true, best);
    std::uint32_t key[1] = {group_keys(block, best, lanes, p.groups, p.sum_of_two)}, place[1] = {0};
    std::int64_t own = 0;
    for (int r = 0; r < p.kept; ++r) {
      const std::int64_t winner = take_best<1>(block, key, place);
      if (block.lane() == r) own = winner;
    }
    if (block.lane() < p.kept) p.topk_group_idx[t * p.kept + block.lane()] = own;
  }

  template <class Block>
  static PORTILE_DEVICE void in_turns(Block& block, const params& p, std::int64_t t) {
    std::uint32_t last_key = ~0u;
    std::int64_t last = -1;
    // One round more than groups kept is not needed, but the first one reports and there may be none to keep.
    const std::int64_t rounds = p.kept > 0 ? p.kept : 1;
    for (std::int64_t r = 0; r < rounds; ++r) {
      std::uint32_t key = 0, turn = ~0u, i = 0;
      for (std::int64_t g = block.lane(); g < p.groups; g += Block::wave_size, ++i) {
        best_two best;
        add_scores(p, t * p.groups + g, 0, 1, r == 0, best);
        const std::uint32_t candidate = best.group_key(p.sum_of_two);
        const bool left = candidate < last_key || (candidate == last_key && g > last);
        if (left && candidate > key) {
          key = candidate;
          turn = i;
        }
      }
      last_key = block.wave_max(key);
      const std::uint32_t earliest = ~block.wave_max(key == last_key ? ~turn : 0u);
      const int winner = first_lane(block.ballot(key == last_key && turn == earliest));
      last = std::int64_t{earliest} * Block::wave_size + winner;
      if (block.lane() == 0 && r < p.kept) p.topk_group_idx[t * p.kept + r] = last;
    }
  }
};

struct topk_sum_and_topk_group_idx_simt {
  static void launch(const context& c, const moe::topk_sum_and_topk_group_idx& p) {
    const topk_groups::params q{static_cast<const float*>(p.scores.data),
                                static_cast<std::int64_t*>(p.topk_group_idx.data),
                                p.scores.extent(0),
                                p.scores.extent(1),
                                p.scores.extent(2),
                                p.num_topk_groups,
                                p.num_topk_sum == 2,
                                c.call.trap};
    if (q.groups == 0) return;
    gpu::launch<topk_groups>(c, numeric::ceil_div(q.tokens, topk_groups::threads / c.call.device->wave_size),
                             0, q);
  }
};

}  // namespace

extern const portile_implementation moe_topk_sum_and_topk_group_idx_simt;
const portile_implementation moe_topk_sum_and_topk_group_idx_simt =
    make_simt<moe::topk_sum_and_topk_group_idx, topk_sum_and_topk_group_idx_simt>();

}  // namespace portile::gpu
