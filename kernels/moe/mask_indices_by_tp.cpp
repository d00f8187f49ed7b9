#include <portile/core/check.hpp>
#include <portile/kernels/moe/mask_indices_by_tp.hpp>

namespace portile::moe {

void mask_indices_by_tp::check(checker& c) const {
  c.need(out.dtype == indices.dtype, "out.dtype", out.dtype,
         "must be " + std::string(to_string(indices.dtype)) + ", the dtype of indices");
  c.need(num_ep_ranks >= 1, "num_ep_ranks", num_ep_ranks, "must be at least 1");
  c.need(num_experts >= num_ep_ranks, "num_experts", num_experts,
         "must be at least num_ep_ranks = " + std::to_string(num_ep_ranks));
  c.need(num_tp_ranks >= 1, "num_tp_ranks", num_tp_ranks, "must be at least 1");
  c.need(tp_rank >= 0 && tp_rank < num_tp_ranks, "tp_rank", tp_rank, "must be 0 to num_tp_ranks - 1");
}

void mask_indices_by_tp::infer(inference& i) const { i.out("out", indices.dtype); }

}  // namespace portile::moe
