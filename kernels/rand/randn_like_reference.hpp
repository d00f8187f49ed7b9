#pragma once
#include <portile/kernels/rand/randn_like.hpp>
#include <portile/kernels/rand/randn_reference.hpp>

namespace portile::rand {

template <class Space>
void compute(const Space& space, const randn_like& p) {
  compute(space, randn{.out = p.out, .seed = p.seed, .offset = p.offset});
}

}  // namespace portile::rand
