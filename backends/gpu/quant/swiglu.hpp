#pragma once
// What the SwiGLU kernels share: which rows count, their weights, the clamp, the activation.
#include <optional>

#include <portile/core/numeric/elementary.hpp>

#include "backends/gpu/quant/chunk.hpp"

namespace portile::gpu {

/// Segments of the psum layout: expert e owns rows [align(psum[e-1], alignment), psum[e]), psum[-1] = 0.
struct segments {
  bool given = false;  ///< absent: every row counts
  const std::int32_t* psum = nullptr;
  std::int64_t num_experts = 0;
  std::int64_t alignment = 1;
  divider align;  ///< psum entries are 32 bits wide

  segments() = default;
  template <class P>
  explicit segments(const P& p) : alignment(p.token_alignment) {
    given = static_cast<bool>(p.psum_num_tokens_per_expert);
    if (!given) return;
    psum = static_cast<const std::int32_t*>(p.psum_num_tokens_per_expert.data);
    num_experts = p.psum_num_tokens_per_expert.extent(0);
    align = divider(alignment, std::int64_t{1} << 33);
  }
  PORTILE_DEVICE std::int64_t align_up(std::int64_t row) const {
    return row > 0 ? (align.quotient(row - 1) + 1) * alignment : 0;
  }
  PORTILE_DEVICE std::int64_t end(std::int64_t e) const { return psum[e] > 0 ? psum[e] : 0; }
  PORTILE_DEVICE std::int64_t begin(std::int64_t e) const { return e > 0 ? align_up(end(e - 1)) : 0; }

  /// Blocks to start at least: the segments are looked at even where there is nothing to compute.
  std::int64_t blocks(std::int64_t n) const { return given ? std::max<std::int64_t>(n, 1) : n; }
  /// Reports bad segments: the threads of one block look at all of them.
  template <class Block>
  PORTILE_DEVICE void check(const Block& block, std::int64_t rows, std::uint64_t* trap) const {
    if (!given || !trap || block.index() != 0) return;
    PORTILE_NO_UNROLL
    for (std::int64_t e = block.thread(); e < num_experts; e += Block::threads)
      if (psum[e] < begin(e) || psum[e] > rows) raise_trap(trap, 0, e);
  }
  /// Sets flags[r - first] to 1 for the rows of [first, last] that an expert owns (`padding`: that lie
  /// between an expert's end and the next multiple of the alignment), else to 0. At most Block::threads rows;
  /// ends with a barrier.
  template <class Block>
  PORTILE_DEVICE void mark(const Block& block, std::int64_t first, std::int64_t last, bool padding,
                           std::uint32_t* flags) const {
    if (block.thread() <= last - first) flags[block.thread()] = 0;
    block.barrier();
    PORTILE_NO_UNROLL
    for (std::int64_t e = block.thread(); e < num_experts; e += Block::threads) {
      const std::int64_t stop = end(e);
      const std::int64_t from = padding ? stop : begin(e), to = padding ? align_up(stop) : stop;
      for (std::int64_t r = from > first ? from : first; r < to && r <= last; ++r) flags[r - first] = 1;
    }
    block.barrier();
  }
};

/// Weight of a row, as in the contract of quant.swiglu_forward_and_per_token_cast.
struct row_weight {
  const float* weights = nullptr;
  const std::int32_t* pos = nullptr;
  std::int64_t choices = 0;  ///< entries of a matrix of weights
  std::int64_t stride = 0;
  divider topk;
  float factor = 1.0f;

  row_weight() = default;
  template <class P>
  explicit row_weight(const P& p) {
    weights = static_cast<const float*>(p.topk_weights.data);
    if (!p.topk_weights) weights = nullptr;
    if (p.routed_scaling_factor) factor = static_cast<float>(*p.routed_scaling_factor);
    if constexpr (requires { p.pos_to_token_topk; })
      if (p.pos_to_token_topk) {
        pos = static_cast<const std::int32_t*>(p.pos_to_token_topk.data);
        choices = p.topk_weights.extent(0) * p.topk_weights.extent(1);
        stride = p.topk_weights.stride(0);
        if (choices > 0) topk = divider(p.topk_weights.extent(1), choices);
      }
  }
  PORTILE_DEVICE float operator()(std::int64_t row, std::uint64_t* trap) const {
    if (pos) {
      const std::int64_t at = pos[row];
      if (at < 0) return 0.0f;
      if (at >= choices) {
        raise_trap(trap, 1, row);
        return 0.0f;
      }
      const std::int64_t token = topk.quotient(at);
      return weights[token * stride + (at - token * topk.value())] * factor;
    }
    return weights ? weights[row] * factor : 1.0f;
  }
};

/// 1 + numeric::exp_f32(-l), the same bits in fewer steps, for a number l: beyond the bounds the sum is 1 or
/// Inf. For a NaN some number: whatever is made of l itself is then a NaN.
PORTILE_DEVICE float one_plus_exp_minus(float l) {
  namespace exp = numeric::detail;
  const float x = max_number(min_number(-l, 89.0f), -30.0f);
  const float shifted = ::fmaf(x, 0x1.715476p+0f, 0x1.8p+23f);
  const float n = shifted - 0x1.8p+23f;
  const float reduced = ::fmaf(n, -exp::ln2_high, x);
  const float r = ::fmaf(n, -exp::ln2_low, reduced);
  const float r_low = ::fmaf(n, -exp::ln2_low, reduced - r);
  float q = 0x1.a12516p-13f;
  q = ::fmaf(q, r, 0x1.6d434ep-10f);
  q = ::fmaf(q, r, 0x1.1110ep-7f);
  q = ::fmaf(q, r, 0x1.5554e8p-5f);
  q = ::fmaf(q, r, 0x1.555556p-3f);
  q = ::fmaf(q, r, 0.5f);
  const float head = 1.0f + r;
  const float carry = (1.0f - head) + r;
  const float power = head + ::fmaf(r * r, q, carry + r_low);
  // 2^(n - 1) by the exponent field, always normal; doubling inside the sum is exact and may overflow.
  const std::uint32_t exponent = numeric::float_bits(shifted) - numeric::float_bits(0x1.8p+23f) - 1u;
  return ::fmaf(numeric::bits_float(numeric::float_bits(power) + (exponent << 23)), 2.0f, 1.0f);
}

/// The left halves of nearly all data: beyond, some steps of swiglu_near would overflow.
inline constexpr float near_left = 64.0f;

/// Sigmoid and SiLU of |l| <= near_left with the bits of 1 / t and l / t, t = one_plus_exp_minus(l), in fewer
/// steps.
struct swiglu_near {
  float sigmoid, silu;
  PORTILE_DEVICE explicit swiglu_near(float l) {
    namespace exp = numeric::detail;
    const float shifted = ::fmaf(l, -0x1.715476p+0f, 0x1.8p+23f);
    const float n = shifted - 0x1.8p+23f;
    const float reduced = ::fmaf(n, -exp::ln2_high, -l);
    const float r = ::fmaf(n, -exp::ln2_low, reduced);
    float q = 0x1.a12516p-13f;
    q = ::fmaf(q, r, 0x1.6d434ep-10f);
    q = ::fmaf(q, r, 0x1.1110ep-7f);
    q = ::fmaf(q, r, 0x1.5554e8p-5f);
    q = ::fmaf(q, r, 0x1.555556p-3f);
    q = ::fmaf(q, r, 0.5f);
    const float head = 1.0f + r;
    // What `head` and the steps before have lost, in one rounding less than core/numeric: compared with it
    // for all l, no t is another.
    const float low = ::fmaf(n, -exp::ln2_low, (1.0f - head) + reduced);
    const float power = head + ::fmaf(r * r, q, low);
    const float t =
        1.0f + numeric::bits_float(numeric::float_bits(power) + (numeric::float_bits(shifted) << 23));
    sigmoid = reciprocal_of_normal(t);
    // The quotient from the rounded reciprocal and its remainder: compared with the division for all l. The
    // signs are such that -0 stays.
    const float quotient = l * sigmoid;
    silu = ::fmaf(::fmaf(t, quotient, -l), -sigmoid, quotient);
  }
};

/// left' = min(left, c), right' = max(min(right, c), -c); NaN stays NaN.
struct swiglu_clamp {
  bool on = false;
  float value = 0;

  swiglu_clamp() = default;
  explicit swiglu_clamp(const std::optional<double>& v)
      : on(v.has_value()), value(v ? static_cast<float>(*v) : 0.0f) {}
  PORTILE_DEVICE bool cuts_left(float l) const { return on && l > value; }
  PORTILE_DEVICE bool cuts_right_above(float r) const { return on && r > value; }
  PORTILE_DEVICE bool cuts_right_below(float r) const { return on && r < -value; }
  PORTILE_DEVICE float left(float l) const { return cuts_left(l) ? value : l; }
  PORTILE_DEVICE float right(float r) const {
    return cuts_right_above(r) ? value : cuts_right_below(r) ? -value : r;
  }
  /// No value of these magnitudes is cut, and swiglu_near takes the left one.
  PORTILE_DEVICE bool is_near(float left, float right) const {
    return left <= near_left && (!on || (left <= value && right <= value));
  }
  PORTILE_DEVICE float activation(float x_left, float x_right) const {
    const float l = left(x_left), r = right(x_right);
    return (l / one_plus_exp_minus(l)) * r;
  }
};

/// Gradient of the weighted activation at one element. A cut by the clamp makes the gradient of that side 0.
struct swiglu_gradient {
  float activation;   ///< before the weight
  float left, right;  ///< gradients of the two halves of x
  /// Where clamp.is_near.
  PORTILE_DEVICE swiglu_gradient(float l, float r, float out_grad, float weight) {
    const swiglu_near e(l);
    activation = e.silu * r;
    const float g = (out_grad * weight) * e.sigmoid;
    left = (g * r) * ::fmaf(l, 1.0f - e.sigmoid, 1.0f);
    right = g * l;
  }
  PORTILE_DEVICE swiglu_gradient(float x_left, float x_right, float out_grad, float weight,
                                 const swiglu_clamp& clamp) {
    const float l = clamp.left(x_left), r = clamp.right(x_right);
    const float t = one_plus_exp_minus(l), s = 1.0f / t;
    activation = (l / t) * r;
    const float g = (out_grad * weight) * s;
    left = clamp.cuts_left(x_left) ? 0.0f : (g * r) * ::fmaf(l, 1.0f - s, 1.0f);
    right = clamp.cuts_right_above(x_right) || clamp.cuts_right_below(x_right) ? 0.0f : g * l;
  }
};

}  // namespace portile::gpu
