#pragma once
// The steps of the mhc operations, each in the order of arithmetic that its contract fixes. Fused operations
// are made of the same steps, so that they give the bits of the unfused ones.
#include <portile/core/numeric/elementary.hpp>
#include <portile/core/numeric/tf32.hpp>
#include <portile/kernels/mhc/sizes.hpp>

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
  for (std::int64_t i = first / hidden; i * hidden < end; ++i) {
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

/// g becomes the gradient of what entered step q; a(i, o) holds that matrix.
template <class A, class G>
KOKKOS_INLINE_FUNCTION void normalise_step_backward(const A& a, const G& g, std::int64_t mult, std::int64_t q,
                                                    float eps) {
  for (std::int64_t n = 0; n < mult; ++n) {
    const auto a_at = [&](std::int64_t m) { return q % 2 == 1 ? a(m, n) : a(n, m); };
    const auto g_at = [&](std::int64_t m) -> float& { return q % 2 == 1 ? g(m, n) : g(n, m); };
    const float divisor = ordered_sum(mult, a_at) + eps;
    const float slope = ordered_sum(mult, [&](std::int64_t m) { return g_at(m) * a_at(m); }) / divisor;
    for (std::int64_t m = 0; m < mult; ++m) g_at(m) = (g_at(m) - slope) / divisor;
  }
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

/// What follows the products of pre_norm_fn, for one token: norm, split, Sinkhorn, weighted sum of the
/// streams.
struct pre_steps {
  mix_affine affine;
  view<float, 2> post_mix;
  view<float, 3> comb_mix;
  view<numeric::bf16, 2> layer_input;
  optional_view<float, 2> pre_mix;
  std::int64_t hidden, repeat;
  float size, norm_eps, pre_eps, sinkhorn_eps, post_mult_value;

  template <class P>
  explicit pre_steps(const P& p)
      : affine{make_view<float, 1>(p.scale), make_view<float, 1>(p.base), p.residual.extent(1)},
        post_mix(make_view<float, 2>(p.post_mix)),
        comb_mix(make_view<float, 3>(p.comb_mix)),
        layer_input(make_view<numeric::bf16, 2>(p.layer_input)),
        pre_mix(saved_pre_mix(p)),
        hidden(p.residual.extent(2)),
        repeat(p.sinkhorn_repeat),
        size(static_cast<float>(p.residual.extent(1) * p.residual.extent(2))),
        norm_eps(static_cast<float>(p.norm_eps)),
        pre_eps(static_cast<float>(p.pre_eps)),
        sinkhorn_eps(static_cast<float>(p.sinkhorn_eps)),
        post_mult_value(static_cast<float>(p.post_mult_value)) {}

  /// out_mul(j): the product of mix j before the norm.
  template <class F>
  KOKKOS_FUNCTION void finish(const view<numeric::bf16, 3>& residual, std::int64_t t, float sqrsum,
                              F out_mul) const {
    const std::int64_t mult = affine.mult;
    const float r = rms_rstd(sqrsum, size, norm_eps);
    float weight[mhc::max_mult];
    for (std::int64_t i = 0; i < mult; ++i) {
      weight[i] = split_pre_mix(affine, out_mul(i) * r, i, pre_eps);
      pre_mix.set(weight[i], t, i);
      post_mix(t, i) = split_post_mix(affine, out_mul(mult + i) * r, i, post_mult_value);
    }
    const auto comb = [&](std::int64_t i, std::int64_t o) -> float& { return comb_mix(t, i, o); };
    for (std::int64_t j = 2 * mult; j < mhc::mixes_of(mult); ++j)
      comb(j / mult - 2, j % mult) = affine(out_mul(j) * r, j);
    sinkhorn_in_place(comb, mult, repeat, sinkhorn_eps);
    for (std::int64_t h = 0; h < hidden; ++h)
      store(layer_input(t, h), apply_mix(
                                   mult, [&](std::int64_t i) { return weight[i]; },
                                   [&](std::int64_t i) { return load(residual(t, i, h)); }));
  }

 private:
  template <class P>
  static tensor saved_pre_mix(const P& p) {
    if constexpr (requires { p.pre_mix; }) return p.pre_mix;
    return {};
  }
};

/// A parameter's gradient: the sum over all tokens, added to the old one or not, rounded once.
KOKKOS_INLINE_FUNCTION void add_gradient(float& to, double sum, bool accumulate) {
  to = static_cast<float>(accumulate ? to + sum : sum);
}

/// Gradients of fn and norm_weight from that of their product.
struct merge_gradients {
  view<float, 2> fn_grad;
  view<float, 1> norm_weight_grad;
  bool has_fn, has_weight, accumulate;

  merge_gradients(const tensor& fn, const tensor& weight, bool add)
      : fn_grad(make_view<float, 2>(fn)),
        norm_weight_grad(make_view<float, 1>(weight)),
        has_fn(fn.defined()),
        has_weight(weight.defined()),
        accumulate(add) {}
  /// Column k; merged(j) is the gradient of fn[j, k] * weight.
  template <class F>
  KOKKOS_FUNCTION void add(std::int64_t rows, std::int64_t k, const view<float, 2>& fn, float weight,
                           F merged) const {
    float sum = 0;
    for (std::int64_t j = 0; (has_fn || has_weight) && j < rows; ++j) {
      const float grad = merged(j);
      if (has_fn) fn_grad(j, k) = ::fmaf(grad, weight, accumulate ? fn_grad(j, k) : 0.0f);
      if (has_weight) sum = ::fmaf(grad, fn(j, k), sum);
    }
    if (has_weight) norm_weight_grad(k) = accumulate ? norm_weight_grad(k) + sum : sum;
  }
};

/// Gradient of sqrsum through r = rsqrt(sqrsum / size + eps), without the cube of r.
KOKKOS_INLINE_FUNCTION float sqrsum_gradient(float r_grad, float r, float sqrsum, float size, float eps) {
  return -0.5f * r_grad * r / (sqrsum + eps * size);
}

/// The way back through pre_norm_fn. `prepare` comes first, for every token; it fills the workspace.
struct norm_gradients {
  mixing_matrix fn;
  view<float, 2> out_mul, out_grad;
  view<float, 1> sqrsum;
  std::int64_t tokens, mixes;
  float size, eps;
  float *mix_grad, *sqrsum_grad;  ///< [tokens, mixes] rounded to tf32, [tokens]

  norm_gradients(const tensor& matrix, const tensor& weight, const tensor& mul, const tensor& squares,
                 const tensor& grad, double norm_eps, void* workspace)
      : fn(matrix, weight),
        out_mul(make_view<float, 2>(mul)),
        out_grad(make_view<float, 2>(grad)),
        sqrsum(make_view<float, 1>(squares)),
        tokens(grad.extent(0)),
        mixes(grad.extent(1)),
        size(static_cast<float>(matrix.extent(1))),
        eps(static_cast<float>(norm_eps)),
        mix_grad(static_cast<float*>(workspace)),
        sqrsum_grad(mix_grad + tokens * mixes) {}

  KOKKOS_FUNCTION void prepare(std::int64_t t) const {
    const float r = rms_rstd(sqrsum(t), size, eps);
    double r_grad = 0;
    for (std::int64_t j = 0; j < mixes; ++j) {
      mix_grad[t * mixes + j] = numeric::to_tf32_nearest(out_grad(t, j) * r);
      r_grad += static_cast<double>(out_grad(t, j)) * out_mul(t, j);
    }
    sqrsum_grad[t] = sqrsum_gradient(static_cast<float>(r_grad), r, sqrsum(t), size, eps);
  }
  /// Gradient of channel k with value r, on top of `sum`.
  KOKKOS_FUNCTION float residual_grad(std::int64_t t, std::int64_t k, float r, float sum) const {
    for (std::int64_t j = 0; j < mixes; ++j) sum = ::fmaf(mix_grad[t * mixes + j], fn(j, k), sum);
    return ::fmaf(2.0f * r, sqrsum_grad[t], sum);
  }
  KOKKOS_FUNCTION void add_parameters(const merge_gradients& to, const view<numeric::bf16, 3>& residual,
                                      std::int64_t k) const {
    const auto hidden = static_cast<std::int64_t>(residual.extent(2));
    to.add(mixes, k, fn.fn, fn.has_weight ? fn.norm_weight(k) : 1.0f, [&](std::int64_t j) {
      double sum = 0;
      for (std::int64_t t = 0; t < tokens; ++t)
        sum += static_cast<double>(mix_grad[t * mixes + j]) * load(residual(t, k / hidden, k % hidden));
      return static_cast<float>(sum);
    });
  }
};

}  // namespace portile::reference
