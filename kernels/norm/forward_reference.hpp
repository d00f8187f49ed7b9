#pragma once
#include <portile/kernels/norm/forward.hpp>

#include "backends/reference/norm.hpp"

namespace portile::norm {

template <class Space>
void compute(const Space& space, const forward& p) {
  using namespace portile::reference;
  visit<float, numeric::bf16>(p.x.dtype, [&](auto type) {
    const rms_norm<decltype(type)> norm(p);
    const batched_rows<decltype(type)> out(p.out);
    space.for_each(
        flat_rows(p.x), KOKKOS_LAMBDA(std::int64_t row) {
          const float rstd = norm.begin(row);
          for (std::int64_t j = 0; j < norm.hidden; ++j) out(row, j) = norm.value(row, j, rstd);
        });
  });
}

}  // namespace portile::norm
