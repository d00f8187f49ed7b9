#pragma once
#include <portile/kernels/moe/reduce_fused.hpp>

#include "backends/reference/space.hpp"

namespace portile::moe {

template <class Space>
void compute(const Space& space, const reduce_fused& p) {
  using namespace portile::reference;
  const auto weights = make_view<float, 2>(p.topk_weights);
  const auto positions = make_view<std::int32_t, 2>(p.token_topk_to_pos);
  const auto x_sf = make_view<float, 1>(p.x_sf);
  const auto* sf = optional_data<float>(p.sf);
  const bool with_weights = p.topk_weights.defined(), with_x_sf = p.x_sf.defined();
  const std::int64_t num_rows = p.x.extent(0), num_tokens = p.out.extent(0), hidden = p.out.extent(1);
  const std::int64_t num_topk = p.token_topk_to_pos.extent(1);
  const auto trap = space.trap;

  visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
    visit<float, numeric::bf16, numeric::e4m3>(p.out.dtype, [&](auto result) {
      const auto x = make_view<decltype(in), 2>(p.x);
      const auto out = make_view<decltype(result), 2>(p.out);
      space.for_each(
          num_tokens, KOKKOS_LAMBDA(std::int64_t t) {
            for (std::int64_t j = 0; j < num_topk; ++j)
              if (positions(t, j) >= num_rows) trap.raise(0, t * num_topk + j);
            for (std::int64_t column = 0; column < hidden; ++column) {
              float acc = 0;
              for (std::int64_t j = 0; j < num_topk; ++j) {
                const std::int64_t pos = positions(t, j);
                if (pos < 0 || pos >= num_rows) continue;
                float c = with_weights ? weights(t, j) : 1.0f;
                if (with_x_sf) c = c * x_sf(pos);
                acc = ::fmaf(load(x(pos, column)), c, acc);
              }
              if (sf) acc = acc * *sf;
              store(out(t, column), acc);
            }
          });
    });
  });
}

}  // namespace portile::moe
