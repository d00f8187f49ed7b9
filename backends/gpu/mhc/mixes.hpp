#pragma once
// From sums of the residual streams to a token's mixes.
#include "backends/gpu/mhc.hpp"

namespace portile::gpu::mhc_steps {

struct mixes_params {
  partial_sums from;
  mix_affine affine;
  rows<float> pre_mix, post_mix, comb_mix, out_mul;  ///< pre_mix, out_mul, sqrsum without data: not wanted
  float* sqrsum;
  std::int64_t repeat;
  float size, norm_eps, pre_eps, sinkhorn_eps, post_mult_value;
  bool in_range;  ///< sinkhorn_in_range
};

/// Lane i of a token's run of lanes: one mix of each kind and a row of comb_mix from `sum`, the products of
/// the pre mix, of the post mix and of the row, then the squares.
template <int mult, class Block>
PORTILE_DEVICE void store_mixes(const Block& block, const mixes_params& p, std::int64_t t, int i, bool live,
                                const float (&sum)[mult + 3]) {
  const float r = rms_rstd(sum[mult + 2], p.size, p.norm_eps);
  if (live) {
    if (p.pre_mix.data) p.pre_mix.at(t)[i] = p.affine.pre(sum[0] * r, i, p.pre_eps);
    p.post_mix.at(t)[i] = p.affine.post(sum[1] * r, i, p.post_mult_value);
  }
  float a[mult];
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) a[o] = p.affine(sum[2 + o] * r, (2 + i) * mult + o);
  sinkhorn_row<mult>(block, a, p.repeat, p.sinkhorn_eps, p.in_range);
  if (!live) return;
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) p.comb_mix.at(t, i)[o] = a[o];
}

}  // namespace portile::gpu::mhc_steps
