#include <algorithm>

#include <portile/core/check.hpp>
#include <portile/kernels/moe/get_fused_mapping.hpp>

namespace portile::moe {

void get_fused_mapping::check(checker& c) const {
  constexpr std::int64_t limit = std::int64_t{1} << 31;
  const std::int64_t rows = c.dim("num_rows"), slots = topk_idx.numel();
  c.need(num_experts >= 0, "num_experts", num_experts, "must not be negative");
  c.need(alignment >= 1 && alignment < limit, "alignment", alignment, "must be at least 1 and below 2^31");
  c.need(slots < limit, "num_tokens * num_topk", slots, "must be below 2^31: positions are int32");
  c.need(rows < limit, "num_rows", rows, "must be below 2^31: positions are int32");
  c.need(num_expanded_tokens == 0 || num_expanded_tokens == rows, "num_expanded_tokens", num_expanded_tokens,
         "must be 0 or the number of rows, " + std::to_string(rows));
}

void get_fused_mapping::infer(inference& i) const {
  using enum dtype;
  // Every expert may waste alignment - 1 rows; a sum of multiples is a multiple.
  const std::int64_t a = std::max<std::int64_t>(alignment, 1);
  const std::int64_t worst = (i.dim("num_tokens") * i.dim("num_topk") + (a - 1) * num_experts) / a * a;
  const bool known = num_expanded_tokens > 0;
  i.bind("num_rows", known ? num_expanded_tokens : worst);
  for (const char* field : {"pos_to_expert", "pos_to_token", "pos_to_token_topk"})
    i.out(field, i32).worst_case = !known;
  for (const char* field : {"token_topk_to_pos", "expert_start", "expert_end", "num_tokens_per_expert"})
    i.out(field, i32);
  if (with_num_live_per_expert || num_live_per_expert.defined()) i.out("num_live_per_expert", i32);
  i.out("num_tokens_per_expert_list", i64);
}

}  // namespace portile::moe
