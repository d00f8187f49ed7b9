#pragma once
#include <portile/kernels/quant/swiglu_backward_and_per_token_cast.hpp>
#include <portile/kernels/quant/swiglu_backward_reference.hpp>

namespace portile::quant {

template <class Space>
void compute(const Space& space, const swiglu_backward_and_per_token_cast& p) {
  compute_gradients(space, p);
}

}  // namespace portile::quant
