#pragma once
// The steps of the mhc operations on a GPU, each once: the fused operations are made of the same functions
// and of the same kernels as the others, so that their bits agree. The order of arithmetic is the reference's
// wherever the contract fixes one.
#include <cmath>

#include <portile/core/numeric/elementary.hpp>
#include <portile/core/numeric/tf32.hpp>
#include <portile/kernels/mhc/sizes.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu::mhc_steps {

using numeric::bf16;

// ------------------------------------------------------------------------------------------------------------
// tensors

/// Rows of a matrix, or of [tokens, streams] rows: the last stride is 1. A matrix leaves `stream` at 0.
template <class T>
struct rows {
  T* data = nullptr;
  std::int64_t token = 0, stream = 0;  ///< strides, in elements

  rows() = default;
  explicit rows(const tensor& t) : data(static_cast<T*>(t.data)) {
    if (t.rank >= 2) token = t.stride(0);
    if (t.rank >= 3) stream = t.stride(1);
  }
  rows(T* p, std::int64_t token_stride, std::int64_t stream_stride)
      : data(p), token(token_stride), stream(stream_stride) {}
  PORTILE_DEVICE T* at(std::int64_t t, std::int64_t i = 0) const { return data + t * token + i * stream; }
};

/// True when rows start and end at multiples of `bytes`; so for an absent tensor.
inline bool whole_chunks(const tensor& t, std::int64_t bytes = 16) {
  if (!t.defined()) return true;
  const std::int64_t size = size_of(t.dtype);
  bool whole = reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
               t.extent(t.rank - 1) * size % bytes == 0;
  for (int i = 0; i + 1 < t.rank; ++i) whole = whole && (t.extent(i) <= 1 || t.stride(i) * size % bytes == 0);
  return whole;
}

// ------------------------------------------------------------------------------------------------------------
// chunks: eight bf16 of a row as they lie in memory

inline constexpr int chunk = 8;
/// How many streams are read before the first of them is used.
inline constexpr int batch = 4;

PORTILE_DEVICE float lane_value(const words4& w, int e) {
  return e % 2 == 0 ? bf16_low(w.w[e / 2]) : bf16_high(w.w[e / 2]);
}

/// `aligned`: the chunk is whole and its address a multiple of 16; else `count` values, zeros after them.
template <bool aligned>
PORTILE_DEVICE words4 load_chunk(const bf16* p, std::int64_t count = chunk) {
  if constexpr (aligned) {
    return load16(p);
  } else {
    words4 w{};
    PORTILE_UNROLL
    for (int e = 0; e < chunk; ++e)
      if (e < count) w.w[e / 2] |= std::uint32_t{p[e].bits} << (16 * (e % 2));
    return w;
  }
}
template <bool aligned>
PORTILE_DEVICE void store_chunk(bf16* p, const words4& w, std::int64_t count = chunk) {
  if constexpr (aligned) {
    store16(p, w);
  } else {
    PORTILE_UNROLL
    for (int e = 0; e < chunk; ++e)
      if (e < count) p[e] = {static_cast<std::uint16_t>(w.w[e / 2] >> (16 * (e % 2)))};
  }
}
PORTILE_DEVICE words4 round_chunk(const float (&v)[chunk]) {
  return {{to_bf16x2(v[0], v[1]), to_bf16x2(v[2], v[3]), to_bf16x2(v[4], v[5]), to_bf16x2(v[6], v[7])}};
}

/// sum = fma(weight, values of the chunk, sum).
PORTILE_DEVICE void add_scaled(float weight, const words4& w, float (&sum)[chunk]) {
  PORTILE_UNROLL
  for (int e = 0; e < chunk; ++e) sum[e] = ::fmaf(weight, lane_value(w, e), sum[e]);
}

/// Weights of a batch of streams; `aligned` when a whole batch lies at a multiple of 16 bytes.
PORTILE_DEVICE void load_weights(const float* p, std::int64_t count, bool aligned, float (&v)[batch]) {
  if (aligned) {
    const words4 w = load16(p);
    PORTILE_UNROLL
    for (int i = 0; i < batch; ++i) v[i] = numeric::bits_float(w.w[i]);
  } else {
    PORTILE_UNROLL
    for (int i = 0; i < batch; ++i) v[i] = i < count ? p[i] : 0.0f;
  }
}

// ------------------------------------------------------------------------------------------------------------
// norm and split

/// 1 / RMS from a sum of squares over `size` values.
PORTILE_DEVICE float rms_rstd(float sqrsum, float size, float eps) {
  return 1.0f / ::sqrtf(sqrsum / size + eps);
}
/// A value as a factor of a tf32 product. The matrix unit drops the low bits: a NaN must have others.
PORTILE_DEVICE float tf32_factor(float v) {
  return numeric::is_finite(v) ? numeric::to_tf32_nearest(v) : v + v;
}

/// Gradient of sqrsum through r = rms_rstd, without the cube of r.
PORTILE_DEVICE float sqrsum_gradient(float r_grad, float r, float sqrsum, float size, float eps) {
  return -0.5f * r_grad * r / (sqrsum + eps * size);
}

/// Scale and base of the mixes: which of the three kinds mix j is, and its logit.
struct mix_affine {
  const float *scale, *base;
  std::int64_t mult;

  PORTILE_DEVICE int segment(std::int64_t j) const { return j < mult ? 0 : j < 2 * mult ? 1 : 2; }
  PORTILE_DEVICE float operator()(float x, std::int64_t j) const {
    return ::fmaf(x, scale[segment(j)], base[j]);
  }
  PORTILE_DEVICE float pre(float x, std::int64_t i, float eps) const {
    return numeric::sigmoid_f32((*this)(x, i)) + eps;
  }
  PORTILE_DEVICE float post(float x, std::int64_t i, float factor) const {
    return numeric::sigmoid_f32((*this)(x, mult + i)) * factor;
  }
};

/// sum_s p[s * stride] in order from 0, `splits` values, several on their way at a time.
PORTILE_DEVICE float ordered_sum(const float* p, std::int64_t stride, std::int64_t splits) {
  constexpr int ahead = 8;
  float sum = 0.0f;
  for (std::int64_t s = 0; s < splits; s += ahead) {
    float v[ahead];
    PORTILE_UNROLL
    for (int i = 0; i < ahead; ++i) v[i] = s + i < splits ? p[(s + i) * stride] : 0.0f;
    PORTILE_UNROLL
    for (int i = 0; i < ahead; ++i)
      if (s + i < splits) sum += v[i];
  }
  return sum;
}

// ------------------------------------------------------------------------------------------------------------
// Sinkhorn: lane i of a run of sinkhorn_lanes<mult> holds row i of a token's matrix; a row at or beyond mult
// is never read by the others. All lanes of the wave take part.

template <int mult>
constexpr int sinkhorn_lanes = mult <= 1   ? 1
                               : mult <= 2 ? 2
                               : mult <= 4 ? 4
                                           : 8;

/// Calls f(std::integral_constant<int, mult>), mult 1 to 8.
template <class F>
PORTILE_DEVICE void with_mult(std::int64_t mult, F f) {
  static_assert(portile::mhc::max_mult == 8);
  switch (mult) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 5:
      return f(std::integral_constant<int, 5>{});
    case 6:
      return f(std::integral_constant<int, 6>{});
    case 7:
      return f(std::integral_constant<int, 7>{});
    default:
      return f(std::integral_constant<int, 8>{});
  }
}
/// sinkhorn_lanes of a mult that is known at run time only.
constexpr int lanes_of(std::int64_t mult) { return mult <= 1 ? 1 : mult <= 2 ? 2 : mult <= 4 ? 4 : 8; }

/// Several quotients by one number. `fast`: the compiler's own steps of a correctly rounded division without
/// its test for what they do not take; numbers and quotients are then 0 or within 2^-100 to 2^100.
template <bool fast>
struct divisor_of {
  float d, y;

  PORTILE_DEVICE explicit divisor_of(float divisor)
      : d(divisor), y(fast ? reciprocal_of_normal(divisor) : 0.0f) {}
  PORTILE_DEVICE float quotient(float a) const {
    if constexpr (fast) {
      float q = a * y;
      q = ::fmaf(::fmaf(-d, q, a), y, q);
      return ::fmaf(::fmaf(-d, q, a), y, q);
    }
    return a / d;
  }
};

/// True when what the steps divide is in the range of divisor_of<true> from softmax + eps on: each entry is
/// at least eps at first and loses no more than the size of a sum a step.
inline bool sinkhorn_in_range(std::int64_t mult, std::int64_t repeat, double eps) {
  return eps > 0 && eps <= 1 && repeat < 1000 &&
         std::log2(eps) -
                 static_cast<double>(2 * repeat) * std::log2(static_cast<double>(mult) * (1 + eps) + eps) >
             -99;
}

template <int mult>
PORTILE_DEVICE void softmax_row(float (&a)[mult]) {
  float top = a[0];
  PORTILE_UNROLL
  for (int o = 1; o < mult; ++o) top = a[o] > top ? a[o] : top;
  float sum = 0.0f;
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) sum += a[o] = numeric::exp_f32(a[o] - top);
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) a[o] /= sum;
}
/// Sums of each column over the rows, in order, in every lane.
template <int mult, class Block>
PORTILE_DEVICE void column_sums(const Block& block, const float (&a)[mult], float (&sum)[mult]) {
  const int first = block.lane() / sinkhorn_lanes<mult> * sinkhorn_lanes<mult>;
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) {
    sum[o] = 0.0f;
    PORTILE_UNROLL
    for (int i = 0; i < mult; ++i) sum[o] += block.shuffle(a[o], first + i);
  }
}
template <int mult>
PORTILE_DEVICE float row_sum(const float (&a)[mult]) {
  float sum = 0.0f;
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) sum += a[o];
  return sum;
}
/// Divides each column by its sum + eps; gives the divisors.
template <bool fast, int mult, class Block>
PORTILE_DEVICE void normalise_columns(const Block& block, float (&a)[mult], float eps,
                                      float (&divisor)[mult]) {
  column_sums(block, a, divisor);
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) a[o] = divisor_of<fast>(divisor[o] += eps).quotient(a[o]);
}
template <bool fast, int mult>
PORTILE_DEVICE float normalise_row(float (&a)[mult], float eps) {
  const divisor_of<fast> divisor(row_sum(a) + eps);
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) a[o] = divisor.quotient(a[o]);
  return divisor.d;
}
/// What the steps begin with: softmax + eps.
template <int mult>
PORTILE_DEVICE void softmax_plus_eps(float (&a)[mult], float eps) {
  softmax_row(a);
  PORTILE_UNROLL
  for (int o = 0; o < mult; ++o) a[o] += eps;
}
template <bool fast, int mult, class Block>
PORTILE_DEVICE void sinkhorn_steps(const Block& block, float (&a)[mult], std::int64_t repeat, float eps) {
  float divisor[mult];
  normalise_columns<fast>(block, a, eps, divisor);
  PORTILE_NO_UNROLL
  for (std::int64_t r = 1; r < repeat; ++r) {
    normalise_row<fast>(a, eps);
    normalise_columns<fast>(block, a, eps, divisor);
  }
}
/// `fast`: sinkhorn_in_range.
template <int mult, class Block>
PORTILE_DEVICE void sinkhorn_row(const Block& block, float (&a)[mult], std::int64_t repeat, float eps,
                                 bool fast) {
  softmax_plus_eps(a, eps);
  if (fast)
    sinkhorn_steps<true>(block, a, repeat, eps);
  else
    sinkhorn_steps<false>(block, a, repeat, eps);
}

// ------------------------------------------------------------------------------------------------------------
// gradients of the merge of fn and norm_weight

struct merge_gradients {
  float *fn_grad = nullptr, *norm_weight_grad = nullptr;  ///< null: absent
  std::int64_t fn_grad_stride = 0;
  const float *fn = nullptr, *norm_weight = nullptr;  ///< norm_weight null: 1
  std::int64_t fn_stride = 0;
  std::int64_t mixes = 0;
  bool accumulate = false;

  merge_gradients() = default;
  merge_gradients(const tensor& fn_out, const tensor& weight_out, const tensor& matrix, const tensor& weight,
                  bool add)
      : fn_grad(static_cast<float*>(fn_out.data)),
        norm_weight_grad(static_cast<float*>(weight_out.data)),
        fn_grad_stride(fn_out.defined() ? fn_out.stride(0) : 0),
        fn(static_cast<const float*>(matrix.data)),
        norm_weight(static_cast<const float*>(weight.data)),
        fn_stride(matrix.stride(0)),
        mixes(matrix.extent(0)),
        accumulate(add) {}

  /// Column k; merged(j) is the gradient of fn[j, k] * weight. Several rows are on their way at a time.
  template <class F>
  PORTILE_DEVICE void add(std::int64_t k, F merged) const {
    constexpr int ahead = 8;
    const float weight = norm_weight ? norm_weight[k] : 1.0f;
    float sum = 0.0f;
    for (std::int64_t j = 0; j < mixes; j += ahead) {
      float grad[ahead], old[ahead], value[ahead];
      PORTILE_UNROLL
      for (int i = 0; i < ahead; ++i) {
        const bool live = j + i < mixes;
        grad[i] = live ? merged(j + i) : 0.0f;
        old[i] = live && fn_grad && accumulate ? fn_grad[(j + i) * fn_grad_stride + k] : 0.0f;
        value[i] = live && norm_weight_grad ? fn[(j + i) * fn_stride + k] : 0.0f;
      }
      PORTILE_UNROLL
      for (int i = 0; i < ahead; ++i) {
        if (j + i >= mixes) continue;
        if (fn_grad) fn_grad[(j + i) * fn_grad_stride + k] = ::fmaf(grad[i], weight, old[i]);
        if (norm_weight_grad) sum = ::fmaf(grad[i], value[i], sum);
      }
    }
    if (norm_weight_grad) norm_weight_grad[k] = accumulate ? norm_weight_grad[k] + sum : sum;
  }
};

// ------------------------------------------------------------------------------------------------------------
// kernels that several operations start, each defined with the operation of its name

/// Sums over splits of the channels: products [splits, tokens, groups, mixes] and squares [splits, tokens,
/// groups], the last strides 1.
struct partial_sums {
  float *out_mul = nullptr, *sqrsum = nullptr;
  std::int64_t splits = 0, tokens = 0, groups = 1, mixes = 0;
  std::int64_t mul_split = 0, mul_token = 0, mul_group = 0;
  std::int64_t square_split = 0, square_token = 0;

  partial_sums() = default;
  /// Contiguous, in memory of bytes().
  partial_sums(void* memory, std::int64_t num_splits, std::int64_t num_tokens, std::int64_t num_mixes)
      : out_mul(static_cast<float*>(memory)),
        splits(num_splits),
        tokens(num_tokens),
        mixes(num_mixes),
        mul_split(num_tokens * num_mixes),
        mul_token(num_mixes),
        square_split(num_tokens),
        square_token(1) {
    if (out_mul) sqrsum = out_mul + num_splits * num_tokens * num_mixes;
  }
  std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(splits * tokens * groups * (mixes + 1)) * 4;
  }
};

/// Channels that a block of the matrix unit's partial sums takes at a time, at most.
inline constexpr int matrix_segment = 1792;
/// mhc.pre_norm_fn_partials of channels in groups of `group`, cut into `splits`. With `to.splits` = 1 the
/// sums of the splits are added too, in order.
void launch_partial_sums(const context& c, const tensor& residual, const tensor& fn,
                         const tensor& norm_weight, std::int64_t group, std::int64_t splits,
                         const partial_sums& to);
/// How many partial sums operations that go on from them keep: one a split, or their total where that fills
/// the device anyway or where they are many.
std::int64_t kept_splits(const portile_device_info& device, std::int64_t tokens, std::int64_t splits,
                         std::int64_t channels);
/// mhc.pre_apply_mix.
void launch_apply_mix(const context& c, const tensor& x, const rows<const float>& mix, bool mix_aligned,
                      const tensor& out);
/// mhc.post.
void launch_post(const context& c, const tensor& x, const tensor& residual, const tensor& post_mix,
                 const tensor& comb_mix, const tensor& out);
/// mhc.reduce_partials_and_rmsnorm. out_mul [tokens, groups, mixes] and sqrsum [tokens, groups] may be
/// absent.
void launch_reduce_partials(const context& c, const partial_sums& from, const tensor& out_mul,
                            const tensor& sqrsum, const tensor& out, float size, float eps);
/// mhc.reduce_partials_and_rmsnorm_backward, the gradient of out_mul rounded to tf32 or not. `out_mul_grad`
/// has strides of tokens and groups, `sqrsum_grad` one of tokens.
void launch_rmsnorm_backward(const context& c, const tensor& out_grad, const rows<const float>& out_mul,
                             const rows<const float>& sqrsum, std::int64_t groups, float size, float eps,
                             bool to_tf32, const rows<float>& out_mul_grad, const rows<float>& sqrsum_grad);

/// mhc.fn_normw_merge_backward of out_grad, rows of `columns` values.
void launch_merge_backward(const context& c, const rows<const float>& out_grad, std::int64_t columns,
                           const merge_gradients& to);

}  // namespace portile::gpu::mhc_steps
