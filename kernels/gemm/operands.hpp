#pragma once
// Rules on factors and their scales that the gemm operations share. Host only.
#include <portile/core/check.hpp>

namespace portile::gemm {

/// Channels of a per scale, and of b: 128 by 128 for e4m3, 1 by 32 for e2m1x2. Shapes of scales say the same
/// in formulas.
inline constexpr std::int64_t scale_block = 128, scale_block_e2m1 = 32;
inline constexpr const char* b_sf_shape = "b.e2m1x2 ? N : ceil(N, 128), ceil(K, b.e2m1x2 ? 32 : 128)";

/// Which types go together, and that scales are given exactly with quantised factors.
inline bool check_factors(checker& c, const tensor& a, const tensor& b, const tensor& a_sf,
                          const tensor& b_sf) {
  const bool quantised = a.dtype == dtype::e4m3;
  const bool pair = quantised ? b.dtype == dtype::e4m3 || b.dtype == dtype::e2m1x2 : b.dtype == a.dtype;
  if (!c.need(pair, "b.dtype", b.dtype,
              quantised ? "must be e4m3 or e2m1x2: a is e4m3"
                        : "must be " + std::string(to_string(a.dtype)) + ", the type of a"))
    return false;
  const std::string rule =
      quantised ? "is required: a and b are quantised" : "must be absent: a and b are not quantised";
  return c.need(quantised == a_sf.defined(), "a_sf", a_sf.defined() ? a_sf.text() : "absent", rule) &&
         c.need(quantised == b_sf.defined(), "b_sf", b_sf.defined() ? b_sf.text() : "absent", rule);
}

/// The segment form of the grouped operations: both bounds of each expert's rows.
inline bool check_segments(checker& c, const tensor& expert_start, const tensor& expert_end) {
  return c.need(expert_start.defined(), "expert_start", "absent",
                "is required: a has two dimensions, rows of all experts") &&
         c.need(expert_end.defined(), "expert_end", "absent",
                "is required: a has two dimensions, rows of all experts");
}

/// Trap rules of segments, numbered in this order by every operation that has them.
enum segment_rule : unsigned { rule_segment, rule_live, rule_overlap, rule_masked };
template <class D>
void describe_segment_traps(D& d) {
  d.trap(
      "0 <= expert_start <= expert_end <= rows of a must hold (index: expert; rows that are not there are "
      "left out)");
  d.trap(
      "num_live_per_expert must be 0 to expert_end - expert_start (index: expert; the nearest legal count is "
      "used)");
  d.trap(
      "segments of experts must not overlap (index: expert; a row belongs to the first expert that has it)");
}

}  // namespace portile::gemm
