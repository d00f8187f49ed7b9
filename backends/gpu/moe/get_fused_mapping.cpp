#include <vector>

#include <portile/kernels/moe/get_fused_mapping.hpp>

#include "backends/gpu/reduce.hpp"
#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

// A stable counting sort in two launches. The slots are cut into chunks. First each chunk is counted by
// expert; then each block adds up, from those counts, where every expert starts and how many of its slots the
// chunks before have, and ranks the slots of its own chunk. More experts than `most` go in passes of `most`.

constexpr int most = 1024;  ///< experts of a pass: what shared memory holds

struct mapping_params {
  const std::int64_t* topk_idx;
  std::int64_t slots, experts, rows, alignment;
  std::int64_t chunks, chunk;  ///< how many; slots of one
  divider topk;
  std::int64_t row_of_stride;  ///< of token_topk_to_pos
  std::int32_t *pos_to_expert, *pos_to_token, *pos_to_token_topk, *token_topk_to_pos;
  std::int32_t *start, *end, *padded, *live;
  std::uint32_t* counts;  ///< of each chunk, by expert
  std::uint64_t* trap;

  PORTILE_DEVICE int pass_experts(std::int64_t first) const {
    return static_cast<int>(experts - first < most ? experts - first : most);
  }
  PORTILE_DEVICE std::int64_t chunk_end(std::int64_t b) const {
    return (b + 1) * chunk < slots ? (b + 1) * chunk : slots;
  }
};

struct count_chunks {
  static constexpr int threads = 512;
  using params = mapping_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* const bins = block.template shared<std::uint32_t>();
    for (std::int64_t b = block.index(); b < p.chunks; b += block.grid()) {
      std::int64_t first = 0;
      do {  // once without experts too: their ids are to be reported
        const int n = p.pass_experts(first);
        for (int e = block.thread(); e < n; e += threads) bins[e] = 0;
        block.barrier();
        const std::int64_t stop = p.chunk_end(b);
        for (std::int64_t s = b * p.chunk + block.thread(); s < stop; s += 4 * threads) {
          std::int64_t id[4];
          PORTILE_UNROLL
          for (int u = 0; u < 4; ++u) id[u] = s + u * threads < stop ? p.topk_idx[s + u * threads] : -1;
          PORTILE_UNROLL
          for (int u = 0; u < 4; ++u) {
            if (id[u] >= first && id[u] < first + n) block.atomic_add(&bins[id[u] - first], 1u);
            if (first == 0 && (id[u] < -1 || id[u] >= p.experts)) raise_trap(p.trap, 0, s + u * threads);
          }
        }
        block.barrier();
        for (int e = block.thread(); e < n; e += threads) p.counts[b * p.experts + first + e] = bins[e];
        block.barrier();
        first += most;
      } while (first < p.experts);
    }
  }
};

struct place_slots {
  static constexpr int threads = 256;
  using params = mapping_params;

  template <class Block>
  struct layout {
    std::uint32_t *total, *before;  ///< slots of an expert: in all, and in the chunks before
    std::int32_t *next, *stop;      ///< first row of the expert for this chunk, and one past the segment
    std::uint32_t* rank;  ///< by wave and expert: slots of the waves before, then of the steps before too
    std::int64_t* sums;   ///< of the waves

    PORTILE_DEVICE layout(const Block& block, int n) {
      sums = block.template shared<std::int64_t>();
      total = reinterpret_cast<std::uint32_t*>(sums + threads / 32);
      before = total + n;
      next = reinterpret_cast<std::int32_t*>(before + n);
      stop = next + n;
      rank = reinterpret_cast<std::uint32_t*>(stop + n);
    }
  };
  static std::size_t shared_bytes(std::int64_t experts, int wave_size) {
    const auto n = static_cast<std::size_t>(std::min<std::int64_t>(experts, most));
    return threads / 32 * 8 + n * 4 * static_cast<std::size_t>(4 + threads / wave_size);
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t b = block.index(); b < p.chunks; b += block.grid()) {
      std::int64_t first = 0, next = 0;  // of the pass: its first expert, and the row that it starts at
      do {
        const int n = p.pass_experts(first);
        const layout<Block> m(block, n);
        add_chunks(block, p, m, b, first, n);
        next = place_experts(block, p, m, b, first, n, next);
        rank_slots(block, p, m, b, first, n);
        block.barrier();
        first += most;
      } while (first < p.experts);
      // Rows past the segments, a share to each chunk.
      const std::int64_t used = next < p.rows ? next : p.rows;
      for (std::int64_t r = used + b * threads + block.thread(); r < p.rows; r += p.chunks * threads)
        clear(p, r);
    }
  }

 private:
  static PORTILE_DEVICE void clear(const params& p, std::int64_t row) {
    p.pos_to_expert[row] = p.pos_to_token[row] = p.pos_to_token_topk[row] = -1;
  }

  template <class Block>
  static PORTILE_DEVICE void add_chunks(const Block& block, const params& p, const layout<Block>& m,
                                        std::int64_t b, std::int64_t first, int n) {
    for (int i = block.thread(); i < (2 + 2 + Block::num_waves) * n; i += threads) m.total[i] = 0;
    block.barrier();
    if (n == 0) return;
    // Few experts: the threads share the chunks of each.
    const int columns = n < threads ? n : threads, parts = threads / columns;
    const int part = block.thread() / columns;
    if (part < parts) {
      for (int e = block.thread() % columns; e < n; e += columns) {
        std::uint32_t total = 0, before = 0;
        const std::uint32_t* counts = p.counts + first + e;
        constexpr int batch = 8;
        for (std::int64_t c = part; c < p.chunks; c += batch * parts) {
          std::uint32_t count[batch];
          PORTILE_UNROLL
          for (int u = 0; u < batch; ++u)
            count[u] = c + u * parts < p.chunks ? counts[(c + u * parts) * p.experts] : 0;
          PORTILE_UNROLL
          for (int u = 0; u < batch; ++u) {
            total += count[u];
            if (c + u * parts < b) before += count[u];
          }
        }
        block.atomic_add(&m.total[e], total);
        block.atomic_add(&m.before[e], before);
      }
    }
    block.barrier();
  }

  /// Rows of the experts, from row `next` on; returns the row after them. The first chunk stores them.
  template <class Block>
  static PORTILE_DEVICE std::int64_t place_experts(const Block& block, const params& p,
                                                   const layout<Block>& m, std::int64_t b, std::int64_t first,
                                                   int n, std::int64_t next) {
    const auto at_most_rows = [&](std::int64_t row) {
      return static_cast<std::int32_t>(row < p.rows ? row : p.rows);
    };
    for (int base = 0; base < n; base += threads) {
      const int e = base + block.thread();
      const std::int64_t count = e < n ? m.total[e] : 0;
      const std::int64_t padded = (count + p.alignment - 1) / p.alignment * p.alignment;
      const std::int64_t in_wave = inclusive_sum_wave(block, padded);
      if (block.lane() == Block::wave_size - 1) m.sums[block.wave()] = in_wave;
      block.barrier();
      std::int64_t start = next + in_wave - padded;
      for (int w = 0; w < Block::num_waves; ++w) {
        if (w < block.wave()) start += m.sums[w];
        next += m.sums[w];
      }
      block.barrier();
      if (e >= n) continue;
      const std::int32_t begin = at_most_rows(start), stop = at_most_rows(start + padded);
      const std::int32_t live = at_most_rows(start + count) - begin;
      m.next[e] = at_most_rows(start + m.before[e]);
      m.stop[e] = stop;
      if (b == 0) {
        if (start + padded > p.rows) raise_trap(p.trap, 1, first + e);
        p.start[first + e] = begin;
        p.end[first + e] = stop;
        p.padded[first + e] = stop - begin;
        if (p.live) p.live[first + e] = live;
      }
      m.total[e] = static_cast<std::uint32_t>(begin + live);  // from here on the first row of the padding
    }
    block.barrier();
    // Padding: a wave an expert, the experts shared by the chunks.
    for (std::int64_t e = b * Block::num_waves + block.wave(); e < n; e += p.chunks * Block::num_waves)
      for (std::int64_t r = m.total[e] + block.lane(); r < m.stop[e]; r += Block::wave_size) clear(p, r);
    return next;
  }

  template <class Block>
  static PORTILE_DEVICE void rank_slots(const Block& block, const params& p, const layout<Block>& m,
                                        std::int64_t b, std::int64_t first, int n) {
    // A wave's slots are consecutive.
    const std::int64_t own = p.chunk / Block::num_waves, chunk_end = p.chunk_end(b);
    const std::int64_t begin = b * p.chunk + block.wave() * own;
    const std::int64_t end = begin + own < chunk_end ? begin + own : chunk_end;
    std::uint32_t* const rank = m.rank + block.wave() * n;
    for (std::int64_t s = begin + block.lane(); s < end; s += Block::wave_size) {
      const std::int64_t id = p.topk_idx[s] - first;
      if (id >= 0 && id < n) block.atomic_add(&rank[id], 1u);
    }
    block.barrier();
    for (int e = block.thread(); e < n; e += threads) {
      std::uint32_t sum = 0;
      for (int w = 0; w < Block::num_waves; ++w) {
        const std::uint32_t count = m.rank[w * n + e];
        m.rank[w * n + e] = sum;
        sum += count;
      }
    }
    block.barrier();

    int bits = 0;
    while (bits < 31 && (1 << bits) < n) ++bits;
    for (std::int64_t base = begin; base < end; base += Block::wave_size) {
      const std::int64_t s = base + block.lane();
      const std::int64_t id = s < end ? p.topk_idx[s] : -1;
      const bool here = id >= first && id < first + n;
      const int e = here ? static_cast<int>(id - first) : 0;
      // Lanes with the same expert.
      std::uint64_t same = block.ballot(here);
      for (int bit = 0; bit < bits; ++bit) {
        const bool set = (e >> bit & 1) != 0;
        const std::uint64_t mask = block.ballot(set);
        same &= set ? mask : ~mask;
      }
      const std::uint64_t lanes_before = same & ((std::uint64_t{1} << block.lane()) - 1);
      const std::uint32_t before = here ? rank[e] : 0;
      block.wave_barrier();
      if (here && lanes_before == 0) rank[e] = before + static_cast<std::uint32_t>(count_lanes(same));
      block.wave_barrier();
      const std::int64_t t = p.topk.quotient(s < end ? s : begin);
      std::int32_t* const row_of = p.token_topk_to_pos + t * p.row_of_stride + (s - t * p.topk.value());
      if (here) {
        const std::int64_t pos = std::int64_t{m.next[e]} + before + count_lanes(lanes_before);
        const bool fits = pos < m.stop[e];
        *row_of = fits ? static_cast<std::int32_t>(pos) : -1;
        if (fits) {
          p.pos_to_expert[pos] = static_cast<std::int32_t>(id);
          p.pos_to_token[pos] = static_cast<std::int32_t>(t);
          p.pos_to_token_topk[pos] = static_cast<std::int32_t>(s);
        }
      } else if (s < end && first == 0 && (id < 0 || id >= p.experts)) {
        *row_of = -1;
      }
    }
  }
};

struct get_fused_mapping_simt {
  static std::uint64_t workspace(const portile_device_info&, const moe::get_fused_mapping& p) {
    const mapping_params q = cut(p);
    return static_cast<std::uint64_t>(q.chunks * q.experts) * sizeof(std::uint32_t);
  }

  static void launch(const context& c, const moe::get_fused_mapping& p) {
    mapping_params q = cut(p);
    const auto i32 = [](const tensor& t) {
      return t.defined() ? static_cast<std::int32_t*>(t.data) : nullptr;
    };
    q.topk_idx = static_cast<const std::int64_t*>(p.topk_idx.data);
    q.rows = p.pos_to_expert.extent(0);
    q.alignment = p.alignment;
    q.topk = divider(std::max<std::int64_t>(1, p.topk_idx.extent(1)), q.slots);
    q.row_of_stride = p.token_topk_to_pos.stride(0);
    q.pos_to_expert = i32(p.pos_to_expert);
    q.pos_to_token = i32(p.pos_to_token);
    q.pos_to_token_topk = i32(p.pos_to_token_topk);
    q.token_topk_to_pos = i32(p.token_topk_to_pos);
    q.start = i32(p.expert_start);
    q.end = i32(p.expert_end);
    q.padded = i32(p.num_tokens_per_expert);
    q.live = i32(p.num_live_per_expert);
    q.counts = static_cast<std::uint32_t*>(c.call.workspace);
    q.trap = c.call.trap;
    const auto bins = static_cast<std::size_t>(std::min<std::int64_t>(q.experts, most));
    gpu::launch<count_chunks>(c, q.chunks, (bins + 1) * 4, q);
    gpu::launch<place_slots>(c, q.chunks, place_slots::shared_bytes(q.experts, c.call.device->wave_size), q);

    const tensor& list = p.num_tokens_per_expert_list;
    if (!list.defined() || list.extent(0) == 0) return;
    std::vector<std::int32_t> counts(static_cast<std::size_t>(q.experts));
    read_back(c, counts.data(), q.padded, counts.size() * sizeof(std::int32_t));
    if (!c.prepare) std::copy(counts.begin(), counts.end(), static_cast<std::int64_t*>(list.data));
  }

 private:
  /// How the slots are cut: enough chunks for a device, and few enough for each block to add up their counts.
  static mapping_params cut(const moe::get_fused_mapping& p) {
    constexpr std::int64_t unit = 512, largest_table = std::int64_t{1} << 22;
    mapping_params q{};
    q.slots = p.topk_idx.numel();
    q.experts = p.num_experts;
    std::int64_t chunks = std::min<std::int64_t>(numeric::ceil_div(q.slots, std::int64_t{1024}), 128);
    chunks = std::min(chunks, largest_table / std::max<std::int64_t>(1, q.experts));
    chunks = std::max<std::int64_t>(1, chunks);
    // Whole steps of every wave.
    q.chunk = std::max(unit, numeric::align_up(numeric::ceil_div(q.slots, chunks), unit));
    q.chunks = std::max<std::int64_t>(1, numeric::ceil_div(q.slots, q.chunk));
    return q;
  }
};

}  // namespace

extern const portile_implementation moe_get_fused_mapping_simt;
const portile_implementation moe_get_fused_mapping_simt =
    make_simt<moe::get_fused_mapping, get_fused_mapping_simt>();

}  // namespace portile::gpu
