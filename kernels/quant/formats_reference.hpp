#pragma once
#include <portile/kernels/quant/formats.hpp>

#include "backends/reference/scales.hpp"

namespace portile::quant {

/// Both tensors are contiguous: a row of values each.
template <class Space>
void compute(const Space& space, const formats& p) {
  using namespace portile::reference;
  const std::int64_t n = value_extent(p.x.dtype, p.x.numel());
  const bool encodes = p.direction == "encode";
  const tensor& codes = encodes ? p.out : p.x;

  if (codes.dtype == dtype::u8) {  // one byte per value: ue8m0, and e2m1 before it is packed
    auto* bytes = static_cast<std::uint8_t*>(codes.data);
    auto* values = static_cast<float*>(encodes ? p.x.data : p.out.data);
    const bool e2m1 = p.fmt == "e2m1";
    const trap_sink trap = space.trap;
    space.for_each(
        n, KOKKOS_LAMBDA(std::int64_t k) {
          if (!encodes) {
            values[k] = numeric::ue8m0_to_float(bytes[k]);
          } else if (e2m1) {
            bytes[k] = numeric::to_e2m1(values[k]);
          } else {
            const std::uint8_t e = numeric::power_of_two_exponent_ceil(values[k]);
            if (numeric::ue8m0_to_float(e) != values[k]) trap.raise(0, k);
            bytes[k] = e;
          }
        });
    return;
  }
  visit<numeric::e4m3, numeric::e2m1x2, numeric::e5m6x8, numeric::bf16>(codes.dtype, [&](auto code) {
    using type = decltype(code);
    // One thread converts the values that share stored elements.
    const std::int64_t group = codes.dtype == dtype::e5m6x8 ? 8 : codes.dtype == dtype::e2m1x2 ? 2 : 1;
    if (encodes) {
      const matrix_reader<float> x(p.x, 0);
      const matrix_writer<type> out(p.out, 0);
      space.for_each(
          n / group, KOKKOS_LAMBDA(std::int64_t g) {
            for (std::int64_t k = g * group; k < (g + 1) * group; ++k) out(0, k, x(0, k));
          });
    } else {
      const matrix_reader<type> x(p.x, 0);
      const matrix_writer<float> out(p.out, 0);
      space.for_each(
          n, KOKKOS_LAMBDA(std::int64_t k) { out(0, k, x(0, k)); });
    }
  });
}

}  // namespace portile::quant
