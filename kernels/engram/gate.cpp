#include <portile/core/aliasing.hpp>
#include <portile/kernels/engram/gate.hpp>
#include <portile/kernels/engram/kv.hpp>

namespace portile::engram {

void gate::check(checker& c) const {
  c.need(c.dim("hidden_size") >= 1, "hidden_size", c.dim("hidden_size"), "must be at least 1");
  if (!check_kv(c, kv, k, v, "")) return;
  c.need(static_cast<float>(clamp_value) > 0, "clamp_value", clamp_value, "must be above 0 in fp32");
  if (!same_buffer(out, hidden_states)) return;
  c.need(out.strides == hidden_states.strides, "out.strides", out, "must be those of hidden_states in place");
  for (const auto& [field, t] :
       {std::pair{"dot", &dot}, {"gate_score", &gate_score}, {"rstd_x", &rstd_x}, {"rstd_k", &rstd_k}})
    c.need(!t->defined(), field, *t,
           "must be absent in place: the backward pass needs the original hidden_states");
}

void gate::infer(inference& i) const {
  i.out("out", dtype::bf16);
  if (!save_for_backward) return;
  for (const char* field : {"dot", "gate_score", "rstd_x", "rstd_k"}) i.out(field, dtype::f32);
}

}  // namespace portile::engram
