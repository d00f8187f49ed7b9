#pragma once
#include <portile/kernels/mhc/multilayer_recompute.hpp>
#include <portile/kernels/mhc/post_reference.hpp>
#include <portile/kernels/mhc/pre_apply_mix_reference.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const multilayer_recompute& p) {
  for (std::int64_t l = 0; l < p.pre_mix.size; ++l) {
    const tensor& streams = l == 0 ? p.initial_residual : p.residual[l - 1];
    compute(space, pre_apply_mix{.x = streams, .mix = p.pre_mix[l], .out = p.layer_input[l]});
    if (l < p.layer_output.size)
      compute(space, post{.x = p.layer_output[l],
                          .residual = streams,
                          .post_mix = p.post_mix[l],
                          .comb_mix = p.comb_mix[l],
                          .out = p.residual[l]});
  }
}

}  // namespace portile::mhc
