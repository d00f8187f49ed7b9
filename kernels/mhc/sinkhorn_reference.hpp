#pragma once
#include <portile/kernels/mhc/sinkhorn.hpp>

#include "backends/reference/mhc.hpp"

namespace portile::mhc {

template <class Space>
void compute(const Space& space, const sinkhorn& p) {
  using namespace portile::reference;
  const std::int64_t mult = p.out.extent(1), repeat = p.repeat;
  const auto x = make_view<float, 3>(p.x), out = make_view<float, 3>(p.out);
  const float eps = static_cast<float>(p.eps);
  space.for_each(
      p.out.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        const auto a = [&](std::int64_t i, std::int64_t o) -> float& { return out(t, i, o); };
        for (std::int64_t i = 0; i < mult; ++i)
          for (std::int64_t o = 0; o < mult; ++o) a(i, o) = x(t, i, o);
        sinkhorn_in_place(a, mult, repeat, eps);
      });
}

}  // namespace portile::mhc
