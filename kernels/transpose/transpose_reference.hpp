#pragma once
#include <portile/kernels/transpose/batched_reference.hpp>
#include <portile/kernels/transpose/transpose.hpp>

namespace portile::transpose {

template <class Space>
void compute(const Space& space, const transpose& p) {
  const auto one = [](const tensor& t) {
    const std::int64_t extents[] = {1, t.extent(0), t.extent(1)}, strides[] = {0, t.stride(0), t.stride(1)};
    return make_tensor(t.data, t.dtype, extents, strides, t.device);
  };
  compute(space, batched{.x = one(p.x), .out = one(p.out)});
}

}  // namespace portile::transpose
