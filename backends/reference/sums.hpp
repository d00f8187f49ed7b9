#pragma once
#include "backends/reference/space.hpp"

namespace portile::reference {

/// The result of a double sum as an element of an output: one rounding.
KOKKOS_INLINE_FUNCTION void store_sum(float& to, double x) { to = static_cast<float>(x); }
KOKKOS_INLINE_FUNCTION void store_sum(numeric::bf16& to, double x) { to = numeric::double_to_bf16(x); }

}  // namespace portile::reference
