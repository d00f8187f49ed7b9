#include <portile/kernels/engram/gate_backward.hpp>
#include <portile/kernels/engram/kv.hpp>

namespace portile::engram {

void gate_backward::check(checker& c) const {
  c.need(c.dim("hidden_size") >= 1, "hidden_size", c.dim("hidden_size"), "must be at least 1");
  if (!check_kv(c, kv, k, v, "") || !check_kv(c, kv_grad, k_grad, v_grad, "_grad")) return;
  c.need(kv.defined() == kv_grad.defined(), "kv_grad", kv_grad,
         "gradients must come in the form of the inputs, packed or apart");
  c.need(static_cast<float>(clamp_value) > 0, "clamp_value", clamp_value, "must be above 0 in fp32");
}

void gate_backward::infer(inference& i) const {
  i.out("hidden_states_grad", dtype::bf16);
  if (k.defined()) {
    i.out("k_grad", dtype::bf16);
    i.out("v_grad", dtype::bf16);
  } else {
    i.out("kv_grad", dtype::bf16);
  }
  i.out("weight_fused_grad", dtype::f32);
}

}  // namespace portile::engram
