#pragma once
// Outputs that are computed only where the caller gave a tensor.
#include "backends/reference/space.hpp"

namespace portile::reference {

/// View of an optional tensor; writes to an absent one do nothing.
template <class T, int Rank>
struct optional_view {
  view<T, Rank> data;
  bool given;

  explicit optional_view(const tensor& t) : data(make_view<T, Rank>(t)), given(t.defined()) {}
  template <class... I>
  KOKKOS_FUNCTION void set(T value, I... index) const {
    if (given) data(index...) = value;
  }
};

}  // namespace portile::reference
