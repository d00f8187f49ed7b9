#pragma once
#include <cstring>

#include "backends/reference/space.hpp"

namespace portile::reference {

/// out[p] = from[t] where token_topk_to_pos[t, j] = p; rows that belong to no expert, or that no slot names,
/// are zero bytes. Elements are moved as bytes, whatever their type; both matrices may have any strides. A
/// position past the rows raises `rule`.
template <class Space>
void move_rows(const Space& space, const tensor& from, const tensor& to, const tensor& positions,
               const tensor& owners, unsigned rule) {
  const auto* source = static_cast<const unsigned char*>(from.data);
  auto* target = static_cast<unsigned char*>(to.data);
  const auto pos = make_view<std::int32_t, 2>(positions);
  const auto owner = make_view<std::int32_t, 1>(owners);
  const std::int64_t size = size_of(from.dtype), width = from.extent(1), num_rows = to.extent(0),
                     num_topk = positions.extent(1);
  const std::int64_t from_row = from.stride(0) * size, from_col = from.stride(1) * size;
  const std::int64_t to_row = to.stride(0) * size, to_col = to.stride(1) * size;
  const auto trap = space.trap;

  space.for_each(
      num_rows, width, KOKKOS_LAMBDA(std::int64_t p, std::int64_t j) {
        std::memset(target + p * to_row + j * to_col, 0, static_cast<std::size_t>(size));
      });
  space.for_each(
      from.extent(0), KOKKOS_LAMBDA(std::int64_t t) {
        for (std::int64_t slot = 0; slot < num_topk; ++slot) {
          const std::int64_t p = pos(t, slot);
          if (p >= num_rows) trap.raise(rule, t * num_topk + slot);
          if (p < 0 || p >= num_rows || owner(p) < 0) continue;
          for (std::int64_t j = 0; j < width; ++j)
            std::memcpy(target + p * to_row + j * to_col, source + t * from_row + j * from_col,
                        static_cast<std::size_t>(size));
        }
      });
}

}  // namespace portile::reference
