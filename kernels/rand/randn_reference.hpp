#pragma once
#include <portile/core/numeric/f16.hpp>
#include <portile/core/numeric/normal.hpp>
#include <portile/kernels/rand/randn.hpp>

#include "backends/reference/space.hpp"

namespace portile::rand {

template <class Space>
void compute(const Space& space, const randn& p) {
  using namespace portile::reference;
  const extents_t extents = p.out.extents, strides = p.out.strides;
  const int rank = p.out.rank;
  const auto seed = static_cast<std::uint64_t>(p.seed), offset = static_cast<std::uint64_t>(p.offset);

  visit<float, numeric::bf16, numeric::f16, double>(p.out.dtype, [&](auto type) {
    using value = decltype(type);
    auto* out = static_cast<value*>(p.out.data);
    space.for_each(
        p.out.numel(), KOKKOS_LAMBDA(std::int64_t i) {
          const auto block =
              numeric::box_muller(numeric::philox4x32_10(seed, static_cast<std::uint64_t>(i / 4), offset));
          const float z = block.z[i % 4];
          std::int64_t at = 0, rest = i;
          for (int d = rank; d-- > 0;) {
            const auto k = static_cast<std::size_t>(d);
            at += rest % extents[k] * strides[k];
            rest /= extents[k];
          }
          if constexpr (std::is_same_v<value, double>)
            out[at] = z;
          else
            store(out[at], z);
        });
  });
}

}  // namespace portile::rand
