#include <portile/kernels/moe/moe_topk_gate_forward.hpp>

#include "backends/gpu/moe/gate.hpp"

namespace portile::gpu {
namespace {

struct moe_topk_gate_forward_simt {
  static void launch(const context& c, const moe::moe_topk_gate_forward& p) {
    const auto given = [](const tensor& t) { return t.defined() ? t.data : nullptr; };
    gate_params q = common_gate_params(c, p);
    q.how = moe::scoring::sqrtsoftplus;
    q.image_bias = static_cast<const float*>(given(p.image_bias));
    q.image = static_cast<const std::uint8_t*>(given(p.image_token_mask));
    q.forced = static_cast<const std::uint8_t*>(given(p.force_random));
    q.scores = static_cast<float*>(given(p.scores));
    launch_gate<false>(c, q);
  }
};

}  // namespace

extern const portile_implementation moe_moe_topk_gate_forward_simt;
const portile_implementation moe_moe_topk_gate_forward_simt =
    make_simt<moe::moe_topk_gate_forward, moe_topk_gate_forward_simt>();

}  // namespace portile::gpu
