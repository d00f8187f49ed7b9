#pragma once
#include <portile/kernels/quant/swiglu_backward.hpp>

#include "backends/reference/swiglu.hpp"

namespace portile::quant {

/// Gradients of SwiGLU for both backward operations; what only the quantised one has is asked for by name.
template <class Space, class P>
void compute_gradients(const Space& space, const P& p) {
  using namespace portile::reference;
  constexpr bool quantised = requires { p.x_grad_fp8; };
  const std::int64_t rows = p.out_grad.extent(0), hidden = p.out_grad.extent(1);
  const row_owner segments(p);
  const row_weight weight(p);
  const swiglu_clamp clamp(p.clamp_value);
  const bool has_act = p.act_out.defined();
  const trap_sink trap = space.trap;
  segments.check(space, rows);
  scale_reader x_sf;
  std::int64_t group = 1;
  if constexpr (quantised) {
    x_sf = scale_reader(p.x_sf, false);
    group = p.num_per_channels;
  }

  visit<float, numeric::bf16, numeric::e4m3>(p.x.dtype, [&](auto in) {
    visit<float, numeric::bf16>(p.out_grad.dtype, [&](auto grad) {
      const matrix_reader<decltype(in)> x(p.x, p.x.stride(p.x.rank - 2));
      const matrix_reader<decltype(grad)> out_grad(p.out_grad);
      const auto gradient = KOKKOS_LAMBDA(std::int64_t t, std::int64_t j, float w) {
        const std::int64_t k = hidden + j;
        return swiglu_gradient(x(t, j) * x_sf(t, j / group), x(t, k) * x_sf(t, k / group), out_grad(t, j), w,
                               clamp);
      };

      visit<float, numeric::bf16>(p.x_grad.dtype, [&](auto value) {
        const matrix_writer<decltype(value)> x_grad(p.x_grad), act_out(p.act_out);
        space.for_each(
            rows, KOKKOS_LAMBDA(std::int64_t t) {
              const bool padding = segments.is_padding(t);
              const float w = padding ? 0.0f : weight(t, trap);
              for (std::int64_t j = 0; j < hidden; ++j) {
                if (padding) {
                  x_grad(t, j, 0.0f);
                  x_grad(t, hidden + j, 0.0f);
                  if (has_act) act_out(t, j, 0.0f);
                  continue;
                }
                const swiglu_gradient g = gradient(t, j, w);
                x_grad(t, j, g.left);
                x_grad(t, hidden + j, g.right);
                if (has_act) act_out(t, j, g.activation * w);
              }
            });
      });

      if constexpr (quantised) {
        const matrix_writer<numeric::e4m3> codes(p.x_grad_fp8);
        const scale_writer codes_sf(p.x_grad_fp8_sf, false);
        const scale_rule rule(dtype::e4m3, flags_of(p));
        space.for_each(
            rows, KOKKOS_LAMBDA(std::int64_t t) {
              const bool padding = segments.is_padding(t);
              const float w = padding ? 0.0f : weight(t, trap);
              const auto side = [&](std::int64_t, std::int64_t c) {
                return c < hidden ? gradient(t, c, w).left : gradient(t, c - hidden, w).right;
              };
              for (std::int64_t k = 0; k * group < 2 * hidden; ++k) {
                const block b = block::at(t, k, 1, group, rows, 2 * hidden);
                const numeric::scale s = padding ? numeric::scale{0, 0, 0} : rule(b.amax(side));
                codes_sf(t, k, s);
                b.for_each([&](std::int64_t r, std::int64_t c) {
                  codes(r, c, padding ? 0.0f : side(r, c) * s.sf_inv);
                });
              }
            });
      }

      if (!p.topk_weights_grad) return;
      // Sums in double: well within the bound, and the same for every backend that sums in another order.
      const float factor = weight.factor();
      const auto weight_grad = KOKKOS_LAMBDA(std::int64_t t) {
        if (segments.is_padding(t)) return 0.0f;
        double sum = 0;
        for (std::int64_t j = 0; j < hidden; ++j)
          sum += static_cast<double>(out_grad(t, j)) * gradient(t, j, 1.0f).activation;
        return static_cast<float>(sum) * factor;
      };
      if (p.topk_weights_grad.rank == 1) {
        auto* to = static_cast<float*>(p.topk_weights_grad.data);
        space.for_each(
            rows, KOKKOS_LAMBDA(std::int64_t t) { to[t] = weight_grad(t); });
      }
      if constexpr (quantised) {
        if (p.topk_weights_grad.rank == 2) {
          const auto to = make_view<float, 2>(p.topk_weights_grad);
          const auto pos = make_view<const std::int32_t, 2>(p.token_topk_to_pos);
          const std::int64_t topk = p.topk_weights_grad.extent(1);
          space.for_each(
              p.topk_weights_grad.extent(0), topk, KOKKOS_LAMBDA(std::int64_t n, std::int64_t k) {
                const std::int64_t t = pos(n, k);
                if (t >= rows) trap.raise(2, n * topk + k);
                to(n, k) = t >= 0 && t < rows ? weight_grad(t) : 0.0f;
              });
        }
      }
    });
  });
}

template <class Space>
void compute(const Space& space, const swiglu_backward& p) {
  compute_gradients(space, p);
}

}  // namespace portile::quant
