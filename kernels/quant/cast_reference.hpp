#pragma once
#include <portile/core/numeric/stochastic.hpp>
#include <portile/kernels/quant/cast.hpp>

#include "backends/reference/space.hpp"

namespace portile::quant {

template <class Space>
void compute(const Space& space, const cast& p) {
  using namespace portile::reference;
  const bool stochastic = p.stochastic_rounding;
  visit<float, numeric::bf16, numeric::e4m3>(p.x.dtype, [&](auto in) {
    visit<float, numeric::bf16, numeric::e4m3>(p.out.dtype, [&](auto value) {
      using out_type = decltype(value);
      const auto* x = static_cast<const decltype(in)*>(p.x.data);
      auto* out = static_cast<out_type*>(p.out.data);
      space.for_each(
          p.x.numel(), KOKKOS_LAMBDA(std::int64_t k) {
            const float v = load(x[k]);
            if (!stochastic) {
              store(out[k], v);
              return;
            }
            const std::int64_t q = k / 4 * 4;
            const int t = static_cast<int>(k % 4);
            const auto bits = [&](std::int64_t j) { return numeric::float_bits(load(x[j])); };
            const auto words = numeric::sr_hash(bits(q), bits(q + 1), bits(q + 2), bits(q + 3),
                                                static_cast<std::uint32_t>(q / 4));
            if constexpr (std::is_same_v<out_type, numeric::bf16>)
              out[k] = numeric::stochastic_bf16(v, numeric::sr_slice_bf16(words, t));
            if constexpr (std::is_same_v<out_type, numeric::e4m3>)
              out[k] = numeric::stochastic_e4m3(v, numeric::sr_slice_e4m3(words.r0, t));
          });
    });
  });
}

}  // namespace portile::quant
