#include <portile/kernels/moe/inplace_unique_group_indices.hpp>

#include "backends/gpu/moe/routes.hpp"

namespace portile::gpu {
namespace {

struct unique_params {
  std::int64_t* groups;
  std::int64_t tokens, k, num_groups;
  std::uint64_t* trap;
};

PORTILE_DEVICE void report(const unique_params& p, std::int64_t g, std::int64_t index) {
  if (g < -1 || g >= p.num_groups) raise_trap(p.trap, 0, index);
}

/// A lane a slot; the lanes of a token are neighbours.
struct unique_by_lanes {
  static constexpr int threads = 256;
  struct params : unique_params {
    int lanes;  ///< of a token, a power of two
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t tokens = threads / p.lanes;  // of a block
    const int j = block.thread() % p.lanes, first_lane = block.lane() - j;
    for (std::int64_t base = block.index() * tokens; base < p.tokens; base += block.grid() * tokens) {
      const std::int64_t t = base + block.thread() / p.lanes, at = t * p.k + j;
      const bool live = t < p.tokens && j < p.k;
      const std::int64_t g = live ? p.groups[at] : -1;
      if (live) report(p, g, at);
      bool drop = g >= p.num_groups;
      for (int i = 0; i + 1 < p.k; ++i) drop |= block.shuffle(g, first_lane + i) == g && i < j && g >= 0;
      if (live && drop) p.groups[at] = -1;
    }
  }
};

/// Any number of slots: a thread a token.
struct unique_in_order {
  static constexpr int threads = 256;
  using params = unique_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t t = block.index() * threads + block.thread(); t < p.tokens;
         t += block.grid() * threads) {
      std::int64_t* row = p.groups + t * p.k;
      for (std::int64_t j = 0; j < p.k; ++j) {
        const std::int64_t g = row[j];
        report(p, g, t * p.k + j);
        bool drop = g >= p.num_groups;
        for (std::int64_t i = 0; i < j && g >= 0 && !drop; ++i) drop = row[i] == g;
        if (drop) row[j] = -1;
      }
    }
  }
};

struct inplace_unique_group_indices_simt {
  static void launch(const context& c, const moe::inplace_unique_group_indices& p) {
    const unique_params q{static_cast<std::int64_t*>(p.group_idx.data), p.group_idx.extent(0),
                          p.group_idx.extent(1), p.num_groups, c.call.trap};
    if (q.k > 32)
      return gpu::launch<unique_in_order>(c, numeric::ceil_div(q.tokens, unique_in_order::threads), 0, q);
    const int lanes = slot_lanes(q.k);
    gpu::launch<unique_by_lanes>(c, numeric::ceil_div(q.tokens, unique_by_lanes::threads / lanes), 0,
                                 {q, lanes});
  }
};

}  // namespace

extern const portile_implementation moe_inplace_unique_group_indices_simt;
const portile_implementation moe_inplace_unique_group_indices_simt =
    make_simt<moe::inplace_unique_group_indices, inplace_unique_group_indices_simt>();

}  // namespace portile::gpu
