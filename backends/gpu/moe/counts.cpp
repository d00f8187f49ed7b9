// Ids counted: moe.group_count and moe.aux_fi.
#include <portile/kernels/moe/aux_fi.hpp>
#include <portile/kernels/moe/group_count.hpp>

#include "backends/gpu/reduce.hpp"
#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

constexpr std::int64_t largest_shared_bins = 12 * 1024;

/// What a block does with the counts of all slots: stores them, or makes shares of them.
struct count_result {
  std::int32_t* counts = nullptr;
  float* shares = nullptr;
  std::int64_t factor = 1, total = 0;  ///< share = count * factor / total

  PORTILE_DEVICE void operator()(std::int64_t bin, std::uint32_t count) const {
    if (counts)
      counts[bin] = static_cast<std::int32_t>(count);
    else
      shares[bin] = total == 0 ? 0.0f
                               : static_cast<float>(static_cast<std::int64_t>(count) * factor) /
                                     static_cast<float>(total);
  }
};

struct count_params {
  const std::int64_t* ids;
  std::int64_t slots, bins;
  count_result result;
  std::uint64_t* trap;
};

/// Calls f(bin) for the ids of slots first + thread, in steps of a block's threads, up to 8 of them.
template <int threads, class F>
PORTILE_DEVICE void visit_ids(const count_params& p, std::int64_t first, F f) {
  constexpr int own = 8;
  std::int64_t id[own];
  PORTILE_UNROLL
  for (int u = 0; u < own; ++u) id[u] = first + u * threads < p.slots ? p.ids[first + u * threads] : -1;
  PORTILE_UNROLL
  for (int u = 0; u < own; ++u) {
    if (id[u] >= 0 && id[u] < p.bins) f(id[u]);
    if (id[u] < -1 || id[u] >= p.bins) raise_trap(p.trap, 0, first + u * threads);
  }
}

/// Few slots: one block, and nothing but the result is written.
struct count_in_one_block {
  static constexpr int threads = 1024;
  using params = count_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    if (block.index() > 0) return;
    auto* const bins = block.template shared<std::uint32_t>();
    for (std::int64_t b = block.thread(); b < p.bins; b += threads) bins[b] = 0;
    block.barrier();
    for (std::int64_t first = block.thread(); first < p.slots; first += 8 * threads)
      visit_ids<threads>(p, first, [&](std::int64_t b) { block.atomic_add(&bins[b], 1u); });
    block.barrier();
    for (std::int64_t b = block.thread(); b < p.bins; b += threads) p.result(b, bins[b]);
  }
};

/// Any number of slots and bins: sums of blocks added to `counts`, zero before the launch; integers, so that
/// their order is no matter. The last block makes the result where that is not the counts themselves.
struct count_in_blocks {
  static constexpr int threads = 512;
  struct params : count_params {
    std::uint32_t *counts, *ticket;
    bool in_shared;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* const flag = block.template shared<std::uint32_t>();
    auto* const bins = flag + 4;
    if (p.in_shared) {
      for (std::int64_t b = block.thread(); b < p.bins; b += threads) bins[b] = 0;
      block.barrier();
    }
    const std::int64_t step = block.grid() * 8 * threads;
    for (std::int64_t first = block.index() * 8 * threads + block.thread(); first < p.slots; first += step)
      visit_ids<threads>(
          p, first, [&](std::int64_t b) { block.atomic_add(p.in_shared ? &bins[b] : &p.counts[b], 1u); });
    if (p.in_shared) {
      block.barrier();
      for (std::int64_t b = block.thread(); b < p.bins; b += threads)
        if (bins[b] != 0) block.atomic_add(&p.counts[b], bins[b]);
    }
    if (!p.ticket || !last_block(block, p.ticket, flag)) return;
    for (std::int64_t b = block.thread(); b < p.bins; b += threads) p.result(b, p.counts[b]);
  }
};

bool one_block(const count_params& q) { return q.slots <= 32 * 1024 && q.bins <= largest_shared_bins; }

/// `counts`: a word a bin, and one more for the ticket where the result is made of them.
void launch_count(const context& c, const count_params& q, std::uint32_t* counts, bool with_ticket) {
  if (one_block(q)) return gpu::launch<count_in_one_block>(c, 1, static_cast<std::size_t>(q.bins + 1) * 4, q);
  fill(c, counts, 0, static_cast<std::size_t>(q.bins + (with_ticket ? 1 : 0)) * 4);
  const bool in_shared = q.bins <= largest_shared_bins - 4;
  gpu::launch<count_in_blocks>(
      c, std::max<std::int64_t>(1, numeric::ceil_div(q.slots, std::int64_t{8} * count_in_blocks::threads)),
      16 + (in_shared ? static_cast<std::size_t>(q.bins) * 4 : 0),
      {q, counts, with_ticket ? counts + q.bins : nullptr, in_shared});
}

struct group_count_simt {
  static void launch(const context& c, const moe::group_count& p) {
    auto* const out = static_cast<std::int32_t*>(p.out.data);
    const count_params q{static_cast<const std::int64_t*>(p.group_idx.data), p.group_idx.numel(),
                         p.num_groups, count_result{out}, c.call.trap};
    launch_count(c, q, reinterpret_cast<std::uint32_t*>(out), false);
  }
};

struct aux_fi_simt {
  static std::uint64_t workspace(const portile_device_info&, const moe::aux_fi& p) {
    return one_block(params_of(p)) ? 0 : static_cast<std::uint64_t>(p.num_experts + 1) * 4;
  }
  static void launch(const context& c, const moe::aux_fi& p) {
    count_params q = params_of(p);
    q.trap = c.call.trap;
    launch_count(c, q, static_cast<std::uint32_t*>(c.call.workspace), true);
  }

 private:
  static count_params params_of(const moe::aux_fi& p) {
    return {static_cast<const std::int64_t*>(p.topk_idx.data), p.topk_idx.numel(), p.num_experts,
            count_result{nullptr, static_cast<float*>(p.out.data), p.num_experts,
                         p.topk_idx.extent(0) * p.num_aux_topk},
            nullptr};
  }
};

}  // namespace

extern const portile_implementation moe_aux_fi_simt, moe_group_count_simt;
const portile_implementation moe_aux_fi_simt = make_simt<moe::aux_fi, aux_fi_simt>();
const portile_implementation moe_group_count_simt = make_simt<moe::group_count, group_count_simt>();

}  // namespace portile::gpu
