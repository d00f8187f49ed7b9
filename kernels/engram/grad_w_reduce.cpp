#include <portile/core/aliasing.hpp>
#include <portile/core/check.hpp>
#include <portile/kernels/engram/grad_w_reduce.hpp>

namespace portile::engram {

void grad_w_reduce::check(checker& c) const {
  c.need(!same_buffer(weight_embed_grad, weight_hidden_grad), "weight_embed_grad.data", weight_embed_grad,
         "must not be the buffer of weight_hidden_grad");
}

void grad_w_reduce::infer(inference& i) const {
  i.out("weight_hidden_grad", dtype::f32);
  i.out("weight_embed_grad", dtype::f32);
}

}  // namespace portile::engram
