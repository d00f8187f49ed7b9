#pragma once
#include <portile/kernels/norm/forward_and_per_token_cast.hpp>

#include "backends/reference/norm.hpp"
#include "backends/reference/scales.hpp"

namespace portile::norm {

template <class Space>
void compute(const Space& space, const forward_and_per_token_cast& p) {
  using namespace portile::reference;
  const std::int64_t group = p.num_per_channels, tokens = p.x.extent(p.x.rank - 2);
  const std::int64_t out_batch = batch_stride(p.out),
                     sf_batch = batch_stride(p.out_sf) * size_of(p.out_sf.dtype);
  const scale_writer out_sf(first_matrix(p.out_sf), false), mega_moe_sf(p.mega_moe_sf, false);
  const std::int64_t block_m = p.mega_moe_block_m > 0 ? p.mega_moe_block_m : 1;
  const scale_rule rule(p.out.dtype, quant::flags_of(p));
  const batched_rows<numeric::bf16> out_bf16(p.out_bf16);

  visit<float, numeric::bf16>(p.x.dtype, [&](auto type) {
    visit<numeric::e4m3, numeric::e2m1x2>(p.out.dtype, [&](auto code) {
      const rms_norm<decltype(type)> norm(p);
      const matrix_writer<decltype(code)> codes(first_matrix(p.out));
      space.for_each(
          flat_rows(p.x), KOKKOS_LAMBDA(std::int64_t row) {
            const std::int64_t b = row / tokens, t = row % tokens;
            auto out = codes;
            out.data += b * out_batch;
            scale_writer sf = out_sf;
            sf.data = static_cast<char*>(sf.data) + b * sf_batch;
            const std::int64_t i = t % block_m;
            const std::int64_t mega_row =
                t / block_m * numeric::align_up(block_m, 128) + i / 128 * 128 + i % 32 * 4 + i % 128 / 32;

            const float rstd = norm.begin(row);
            for (std::int64_t first = 0; first < norm.hidden; first += group) {
              float amax = 0;
              for (std::int64_t j = first; j < first + group; ++j)
                amax = numeric::amax_step(amax, load(norm.value(row, j, rstd)));
              const numeric::scale s = rule(amax);
              sf(t, first / group, s);
              mega_moe_sf(mega_row, first / group, s);
              for (std::int64_t j = first; j < first + group; ++j) {
                const float v = load(norm.value(row, j, rstd));
                out(t, j, v * s.sf_inv);
                if (out_bf16) store(out_bf16(row, j), v);
              }
            }
          });
    });
  });
}

}  // namespace portile::norm
