#pragma once
// The steps of the mhc operations, each in the order of arithmetic that its contract fixes. Fused operations
// are made of the same steps, so that they give the bits of the unfused ones.
#include <portile/core/numeric/elementary.hpp>
#include <portile/core/numeric/tf32.hpp>

#include "backends/reference/optional.hpp"

namespace portile::reference {

/// 1 / RMS from a sum of squares over `size` values.
KOKKOS_INLINE_FUNCTION float rms_rstd(float sqrsum, float size, float eps) {
  return 1.0f / ::sqrtf(sqrsum / size + eps);
}

/// The mixing matrix as the GEMM sees it: fn, times norm_weight where given, rounded to tf32.
struct mixing_matrix {
  view<float, 2> fn;
  view<float, 1> norm_weight;
  bool has_weight;

  mixing_matrix(const tensor& matrix, const tensor& weight)
      : fn(make_view<float, 2>(matrix)),
        norm_weight(make_view<float, 1>(weight)),
        has_weight(weight.defined()) {}
  KOKKOS_FUNCTION float operator()(std::int64_t j, std::int64_t k) const {
    return numeric::to_tf32_nearest(has_weight ? fn(j, k) * norm_weight(k) : fn(j, k));
  }
};

/// Calls f(k, residual[t] flattened at k as double) for k in [first, end).
template <class F>
KOKKOS_INLINE_FUNCTION void for_each_channel(const view<numeric::bf16, 3>& residual, std::int64_t t,
                                             std::int64_t first, std::int64_t end, F f) {
  const auto hidden = static_cast<std::int64_t>(residual.extent(2));
  for (std::int64_t i = first / (hidden > 0 ? hidden : 1); i * hidden < end; ++i) {
    const std::int64_t from = first > i * hidden ? first - i * hidden : 0;
    const std::int64_t to = end < (i + 1) * hidden ? end - i * hidden : hidden;
    for (std::int64_t h = from; h < to; ++h) f(i * hidden + h, static_cast<double>(load(residual(t, i, h))));
  }
}

/// sum_k residual[t, k] * fn[j, k] over the channels [first, end), rounded once to fp32.
KOKKOS_INLINE_FUNCTION float partial_mix(const view<numeric::bf16, 3>& residual, const mixing_matrix& fn,
                                         std::int64_t t, std::int64_t j, std::int64_t first,
                                         std::int64_t end) {
  double sum = 0;
  for_each_channel(residual, t, first, end, [&](std::int64_t k, double r) { sum += r * fn(j, k); });
  return static_cast<float>(sum);
}
/// sum_k residual[t, k]^2 over the channels [first, end), rounded once to fp32.
KOKKOS_INLINE_FUNCTION float partial_sqrsum(const view<numeric::bf16, 3>& residual, std::int64_t t,
                                            std::int64_t first, std::int64_t end) {
  double sum = 0;
  for_each_channel(residual, t, first, end, [&](std::int64_t, double r) { sum += r * r; });
  return static_cast<float>(sum);
}

/// f(0) + f(1) + ... in fp32, in this order, starting from 0.
template <class F>
KOKKOS_INLINE_FUNCTION float ordered_sum(std::int64_t n, F f) {
  float sum = 0;
  for (std::int64_t s = 0; s < n; ++s) sum += f(s);
  return sum;
}

/// Where the mixes of the three kinds begin in a row of mhc_mult * (mhc_mult + 2), and the scale and base of
/// each.
struct mix_affine {
  view<float, 1> scale, base;
  std::int64_t mult;

  KOKKOS_FUNCTION std::int64_t segment(std::int64_t j) const { return j < mult ? 0 : j < 2 * mult ? 1 : 2; }
  KOKKOS_FUNCTION float operator()(float x, std::int64_t j) const {
    return ::fmaf(x, scale(segment(j)), base(j));
  }
};

KOKKOS_INLINE_FUNCTION float split_pre_mix(const mix_affine& affine, float x, std::int64_t i, float pre_eps) {
  return numeric::sigmoid_f32(affine(x, i)) + pre_eps;
}
KOKKOS_INLINE_FUNCTION float split_post_mix(const mix_affine& affine, float x, std::int64_t i,
                                            float post_mult_value) {
  return numeric::sigmoid_f32(affine(x, affine.mult + i)) * post_mult_value;
}

/// Sinkhorn normalisation of a(i, o), mult x mult, in place: softmax over o, + eps, then columns and rows in
/// turn.
template <class A>
KOKKOS_INLINE_FUNCTION void softmax_rows(const A& a, std::int64_t mult) {
  for (std::int64_t i = 0; i < mult; ++i) {
    float top = a(i, 0);
    for (std::int64_t o = 1; o < mult; ++o) top = a(i, o) > top ? a(i, o) : top;
    float sum = 0;
    for (std::int64_t o = 0; o < mult; ++o) sum += a(i, o) = numeric::exp_f32(a(i, o) - top);
    for (std::int64_t o = 0; o < mult; ++o) a(i, o) /= sum;
  }
}
/// Step q = 1 .. 2*repeat-1: odd steps divide each column by its sum + eps, even steps each row.
template <class A>
KOKKOS_INLINE_FUNCTION void normalise_step(const A& a, std::int64_t mult, std::int64_t q, float eps) {
  for (std::int64_t n = 0; n < mult; ++n) {
    const auto at = [&](std::int64_t m) -> float& { return q % 2 == 1 ? a(m, n) : a(n, m); };
    const float divisor = ordered_sum(mult, at) + eps;
    for (std::int64_t m = 0; m < mult; ++m) at(m) /= divisor;
  }
}
template <class A>
KOKKOS_INLINE_FUNCTION void add_to_all(const A& a, std::int64_t mult, float eps) {
  for (std::int64_t i = 0; i < mult; ++i)
    for (std::int64_t o = 0; o < mult; ++o) a(i, o) += eps;
}
template <class A>
KOKKOS_INLINE_FUNCTION void sinkhorn_in_place(const A& a, std::int64_t mult, std::int64_t repeat, float eps) {
  softmax_rows(a, mult);
  add_to_all(a, mult, eps);
  for (std::int64_t q = 1; q < 2 * repeat; ++q) normalise_step(a, mult, q, eps);
}

/// One channel of pre_apply_mix: streams in order, starting from 0.
template <class Mix, class Stream>
KOKKOS_INLINE_FUNCTION float apply_mix(std::int64_t mult, Mix mix, Stream x) {
  float sum = 0;
  for (std::int64_t i = 0; i < mult; ++i) sum = ::fmaf(mix(i), x(i), sum);
  return sum;
}
/// One channel of post, for one out stream: post_mix * x first, then the streams in order.
template <class Comb, class Stream>
KOKKOS_INLINE_FUNCTION float post_mix_add(std::int64_t mult, float post_mix, float x, Comb comb,
                                          Stream residual) {
  float sum = post_mix * x;
  for (std::int64_t i = 0; i < mult; ++i) sum = ::fmaf(comb(i), residual(i), sum);
  return sum;
}

}  // namespace portile::reference
