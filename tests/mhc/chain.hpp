#pragma once
// The four operations that mhc.pre and mhc.pre_big_fuse put together, run one by one.
#include <portile/portile.hpp>

#include "support/layouts.hpp"

namespace portile::test {

struct unfused {
  mhc::pre_norm_fn norm;
  mhc::pre_split_mixes split;
  mhc::sinkhorn sinkhorn;
  mhc::pre_apply_mix apply;
};

/// From p's inputs and attributes (mhc.pre, or mhc.pre_big_fuse with fn), over new outputs in m.
template <class P>
unfused run_unfused(memory& m, const P& p, const tensor& norm_weight, std::int64_t n_splits) {
  const std::int64_t tokens = p.residual.extent(0), mult = p.residual.extent(1), mixes = mult * (mult + 2);
  queue q{cpu_selector};
  unfused u;
  u.norm.residual = p.residual;
  u.norm.fn = p.fn;
  u.norm.norm_weight = norm_weight;
  u.norm.norm_eps = p.norm_eps;
  u.norm.n_splits = n_splits;
  u.norm.out = m.make(dtype::f32, {tokens, mixes});
  u.norm.out_mul = m.make(dtype::f32, {tokens, mixes});
  u.norm.sqrsum = m.make(dtype::f32, {tokens});
  run(q, u.norm);
  u.split.x = u.norm.out;
  u.split.scale = p.scale;
  u.split.base = p.base;
  u.split.pre_eps = p.pre_eps;
  u.split.post_mult_value = p.post_mult_value;
  u.split.pre_mix = m.make(dtype::f32, {tokens, mult});
  u.split.post_mix = m.make(dtype::f32, {tokens, mult});
  u.split.comb_mix = m.make(dtype::f32, {tokens, mult, mult});
  run(q, u.split);
  u.sinkhorn.x = u.split.comb_mix;
  u.sinkhorn.out = m.make(dtype::f32, {tokens, mult, mult});
  u.sinkhorn.repeat = p.sinkhorn_repeat;
  u.sinkhorn.eps = p.sinkhorn_eps;
  run(q, u.sinkhorn);
  u.apply.x = p.residual;
  u.apply.mix = u.split.pre_mix;
  u.apply.out = m.make(dtype::bf16, {tokens, p.residual.extent(2)});
  run(q, u.apply);
  return u;
}

}  // namespace portile::test
