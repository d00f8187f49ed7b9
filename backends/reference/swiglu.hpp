#pragma once
// What the SwiGLU references share: which rows count, their weights, the clamp, the activation.
#include <optional>

#include <portile/core/numeric/elementary.hpp>
#include <portile/core/numeric/integer.hpp>

#include "backends/reference/scales.hpp"

namespace portile::reference {

/// Rows of a matrix that is sorted by expert.
/// psum layout: expert e owns rows [align(psum[e-1], alignment), psum[e]), psum[-1] = 0; the rest is padding.
/// pos_to_expert: rows with a negative entry are padding. Neither: every row counts.
class row_owner {
 public:
  template <class P>
  explicit row_owner(const P& p)
      : psum_(static_cast<const std::int32_t*>(p.psum_num_tokens_per_expert.data)),
        alignment_(p.token_alignment) {
    has_psum_ = p.psum_num_tokens_per_expert.defined();
    if (has_psum_) num_experts_ = p.psum_num_tokens_per_expert.extent(0);
    if constexpr (requires { p.pos_to_expert; })
      if (p.pos_to_expert) pos_to_expert_ = static_cast<const std::int32_t*>(p.pos_to_expert.data);
  }
  KOKKOS_FUNCTION std::int64_t num_experts() const { return num_experts_; }
  KOKKOS_FUNCTION std::int64_t begin(std::int64_t e) const {
    return e > 0 ? numeric::align_up(end(e - 1), alignment_) : 0;
  }
  KOKKOS_FUNCTION std::int64_t end(std::int64_t e) const { return psum_[e] > 0 ? psum_[e] : 0; }
  KOKKOS_FUNCTION bool operator()(std::int64_t row) const {
    if (pos_to_expert_ && pos_to_expert_[row] < 0) return false;
    if (!has_psum_) return true;
    for (std::int64_t e = 0; e < num_experts_; ++e)
      if (begin(e) <= row && row < end(e)) return true;
    return false;
  }

  /// True for rows between the end of an expert and the next multiple of the alignment: the backward
  /// operations clear them.
  KOKKOS_FUNCTION bool is_padding(std::int64_t row) const {
    for (std::int64_t e = 0; e < num_experts_; ++e)
      if (end(e) <= row && row < numeric::align_up(end(e), alignment_)) return true;
    return false;
  }

  /// Reports bad segments. They do no harm: only rows that exist are ever asked for.
  template <class Space>
  void check(const Space& space, std::int64_t rows) const {
    const row_owner self = *this;
    const trap_sink trap = space.trap;
    space.for_each(
        num_experts_, KOKKOS_LAMBDA(std::int64_t e) {
          if (self.psum_[e] < self.begin(e) || self.psum_[e] > rows) trap.raise(0, e);
        });
  }

 private:
  const std::int32_t* psum_;
  const std::int32_t* pos_to_expert_ = nullptr;
  std::int64_t num_experts_ = 0, alignment_;
  bool has_psum_ = false;
};

/// Weight of a row: 1 without weights, topk_weights[row], or topk_weights.flat[pos_to_token_topk[row]] and 0
/// where that is negative; times the routed scaling factor, one fp32 product.
class row_weight {
 public:
  template <class P>
  explicit row_weight(const P& p)
      : weights_(static_cast<const float*>(p.topk_weights.data)), has_weights_(p.topk_weights.defined()) {
    if constexpr (requires { p.routed_scaling_factor; })
      if (p.routed_scaling_factor) factor_ = static_cast<float>(*p.routed_scaling_factor);
    if constexpr (requires { p.pos_to_token_topk; })
      if (p.pos_to_token_topk) {
        pos_ = static_cast<const std::int32_t*>(p.pos_to_token_topk.data);
        tokens_ = p.topk_weights.extent(0);
        topk_ = p.topk_weights.extent(1);
        stride_ = p.topk_weights.stride(0);
      }
  }
  KOKKOS_FUNCTION float factor() const { return factor_; }
  KOKKOS_FUNCTION float operator()(std::int64_t row, const trap_sink& trap) const {
    if (!has_weights_) return 1.0f;
    if (!pos_) return weights_[row] * factor_;
    const std::int64_t pos = pos_[row];
    if (pos < 0) return 0.0f;
    if (pos >= tokens_ * topk_) {
      trap.raise(1, row);
      return 0.0f;
    }
    return weights_[pos / topk_ * stride_ + pos % topk_] * factor_;
  }

 private:
  const float* weights_;
  const std::int32_t* pos_ = nullptr;
  std::int64_t tokens_ = 0, topk_ = 1, stride_ = 0;
  float factor_ = 1.0f;
  bool has_weights_;
};

/// left' = min(left, c), right' = max(min(right, c), -c); NaN stays NaN.
struct swiglu_clamp {
  bool on = false;
  float value = 0;
  explicit swiglu_clamp(const std::optional<double>& v)
      : on(v.has_value()), value(v ? static_cast<float>(*v) : 0.0f) {}
  KOKKOS_FUNCTION bool cuts_left(float l) const { return on && l > value; }
  KOKKOS_FUNCTION bool cuts_right_above(float r) const { return on && r > value; }
  KOKKOS_FUNCTION bool cuts_right_below(float r) const { return on && r < -value; }
  KOKKOS_FUNCTION float left(float l) const { return cuts_left(l) ? value : l; }
  KOKKOS_FUNCTION float right(float r) const {
    return cuts_right_above(r) ? value : cuts_right_below(r) ? -value : r;
  }
};

/// x = [left | right]: activation (l / (1 + exp(-l))) * r of row t, column j, in fp32 and in this order.
template <class T>
struct swiglu_activation {
  matrix_reader<T> x;
  std::int64_t hidden;
  swiglu_clamp clamp;
  KOKKOS_FUNCTION float operator()(std::int64_t t, std::int64_t j) const {
    const float l = clamp.left(x(t, j)), r = clamp.right(x(t, hidden + j));
    return (l / (1.0f + numeric::exp_f32(-l))) * r;
  }
};

/// Adds to the counters what the clamp cuts in the rows that count: [0] left, [1] right above, [2] right
/// below, and, where there is a fourth, the number of activations.
template <class Space, class T>
void count_clamped(const Space& space, const swiglu_activation<T>& a, const row_owner& owns,
                   std::int64_t rows, const tensor& clamped_count) {
  if (!clamped_count) return;
  auto* count = static_cast<std::int64_t*>(clamped_count.data);
  const bool counts_all = clamped_count.extent(0) > 3;
  space.for_each(
      rows, KOKKOS_LAMBDA(std::int64_t t) {
        if (!owns(t)) return;
        std::int64_t n[3] = {0, 0, 0};
        for (std::int64_t j = 0; j < a.hidden; ++j) {
          const float l = a.x(t, j), r = a.x(t, a.hidden + j);
          n[0] += a.clamp.cuts_left(l);
          n[1] += a.clamp.cuts_right_above(r);
          n[2] += a.clamp.cuts_right_below(r);
        }
        for (int k = 0; k < 3; ++k) Kokkos::atomic_add(count + k, n[k]);
        if (counts_all) Kokkos::atomic_add(count + 3, a.hidden);
      });
}

/// Gradient of the weighted activation at one element. A cut by the clamp makes the gradient of that side 0.
struct swiglu_gradient {
  float activation;   ///< before the weight
  float left, right;  ///< gradients of the two halves of x
  KOKKOS_FUNCTION swiglu_gradient(float x_left, float x_right, float out_grad, float weight,
                                  const swiglu_clamp& clamp) {
    const float l = clamp.left(x_left), r = clamp.right(x_right);
    const float t = 1.0f + numeric::exp_f32(-l), s = 1.0f / t;
    activation = (l / t) * r;
    const float g = (out_grad * weight) * s;
    left = clamp.cuts_left(x_left) ? 0.0f : (g * r) * ::fmaf(l, 1.0f - s, 1.0f);
    right = clamp.cuts_right_above(x_right) || clamp.cuts_right_below(x_right) ? 0.0f : g * l;
  }
};

}  // namespace portile::reference
