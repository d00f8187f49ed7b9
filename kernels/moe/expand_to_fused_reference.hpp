#pragma once
#include <portile/kernels/moe/expand_to_fused.hpp>

#include "backends/reference/move_rows.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const expand_to_fused& p) {
  reference::move_rows(space, p.x, p.out, p.token_topk_to_pos, p.pos_to_expert, 0);
}

}  // namespace portile::moe
