#pragma once
// Rows of the experts in the grouped products.
#include <portile/core/numeric/integer.hpp>

#include "backends/gpu/gemm/tile.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {

/// Which rows belong to which expert, in both forms of the grouped operations. Broken data never leads
/// outside 0 .. rows - 1.
struct expert_rows {
  const std::int32_t *start, *end, *live, *masked;
  std::int64_t experts, rows;  ///< rows: of a, or of each expert in the masked form

  struct range {
    std::int64_t begin = 0, end = 0;
    PORTILE_DEVICE bool has(std::int64_t row) const { return row >= begin && row < end; }
    PORTILE_DEVICE bool meets(const range& r) const {
      return r.begin < end && begin < r.end && r.begin < r.end && begin < end;
    }
  };
  static PORTILE_DEVICE std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
    return x < low ? low : x > high ? high : x;
  }
  PORTILE_DEVICE range operator()(std::int64_t e) const {
    if (masked) return {0, clamp(masked[e], 0, rows)};
    const std::int64_t first = clamp(start[e], 0, rows), last = clamp(end[e], first, rows);
    return {first, live ? first + clamp(live[e], 0, last - first) : last};
  }
  PORTILE_DEVICE bool taken_by_earlier(std::int64_t e, std::int64_t row) const {
    for (std::int64_t other = 0; other < e; ++other)
      if ((*this)(other).has(row)) return true;
    return false;
  }
  /// True in all threads when an expert before e has rows of `mine` too: only in broken data. `flag`: a word
  /// of shared memory.
  template <class Block>
  PORTILE_DEVICE bool shares(const Block& block, std::int64_t e, const range& mine,
                             std::uint32_t* flag) const {
    if (masked) return false;
    if (block.thread() == 0) *flag = 0;
    block.barrier();
    for (std::int64_t other = block.thread(); other < e; other += Block::threads)
      if ((*this)(other).meets(mine)) block.atomic_or(flag, 1u);
    block.barrier();
    const bool shared = *flag != 0;
    block.barrier();
    return shared;
  }
};

inline expert_rows make_expert_rows(const tensor& start, const tensor& end, const tensor& live,
                                    const tensor& masked, std::int64_t experts, std::int64_t rows) {
  const auto i32 = [](const tensor& t) {
    return t.defined() ? static_cast<const std::int32_t*>(t.data) : nullptr;
  };
  return {i32(start), i32(end), i32(live), i32(masked), experts, rows};
}

/// Reports the experts whose segments break a rule, where somebody listens.
void report_segments(const context& c, const expert_rows& rows_of);

}  // namespace portile::gpu
