#pragma once
// What the chains share: optional results, gradients that come together, flattened token dimensions. Host
// only.
#include <portile/core/check.hpp>
#include <portile/core/composite.hpp>

namespace portile::chain {

/// The caller's tensor, or a temporary in its place.
inline tensor or_temporary(composer& c, const tensor& t, dtype type,
                           std::initializer_list<std::int64_t> extents) {
  return t.defined() ? t : c.temporary(type, extents);
}

/// A gradient that only makes sense with another tensor.
inline bool check_needs(checker& c, const char* name, const tensor& t, const char* other,
                        const tensor& needed) {
  return c.need(!t.defined() || needed.defined(), name, t, std::string("needs ") + other);
}

/// Gradients of the mixing parameters, and the residual's: out_grad behind all of them, scale and base
/// together.
inline bool check_mixing_gradients(checker& c, const auto& p) {
  return check_needs(c, "residual_grad", p.residual_grad, "out_grad", p.out_grad) &&
         check_needs(c, "fn_grad", p.fn_grad, "out_grad", p.out_grad) &&
         check_needs(c, "norm_weight_grad", p.norm_weight_grad, "out_grad", p.out_grad) &&
         check_needs(c, "norm_weight_grad", p.norm_weight_grad, "norm_weight", p.norm_weight) &&
         check_needs(c, "scale_grad", p.scale_grad, "out_grad", p.out_grad) &&
         c.need_both_or_none("scale_grad", p.scale_grad.defined(), "base_grad", p.base_grad.defined()) &&
         c.need(!p.residual_grad || p.residual_grad.numel() == 0 ||
                    (p.residual_grad.data != p.out_grad.data && p.residual_grad.data != p.residual.data),
                "residual_grad.data", p.residual_grad, "must not be the buffer of out_grad or residual");
}
inline bool has_gradients(const auto& p) {
  return p.residual_grad || p.fn_grad || p.norm_weight_grad || p.scale_grad;
}

/// Number of tokens of a tensor whose last `inner` dimensions belong to one token.
inline std::int64_t tokens_of(const tensor& t, int inner) {
  std::int64_t n = 1;
  for (int i = 0; i < t.rank - inner; ++i) n *= t.extent(i);
  return n;
}
/// Whether the token dimensions have one common stride.
inline bool flattens(const tensor& t, int inner) {
  std::int64_t expected = -1;
  for (int i = t.rank - inner - 1; i >= 0; --i) {
    if (t.extent(i) == 1) continue;
    if (expected >= 0 && t.stride(i) != expected) return t.numel() == 0;
    expected = t.stride(i) * t.extent(i);
  }
  return true;
}
/// The same elements as [tokens, inner dimensions].
inline tensor flattened(const tensor& t, int inner) {
  if (!t) return t;
  tensor r = t;
  r.rank = inner + 1;
  r.extents = {};
  r.strides = {};
  r.extents[0] = tokens_of(t, inner);
  // The step of the innermost token dimension that has one; 0 is a step too, that of a repeated token.
  int step = t.rank - inner - 1;
  while (step >= 0 && t.extent(step) <= 1) --step;
  if (step >= 0)
    r.strides[0] = t.stride(step);
  else
    r.strides[0] = inner > 0 ? t.extent(t.rank - inner) * t.stride(t.rank - inner) : 1;
  for (int i = 0; i < inner; ++i) {
    r.extents[static_cast<std::size_t>(i + 1)] = t.extent(t.rank - inner + i);
    r.strides[static_cast<std::size_t>(i + 1)] = t.stride(t.rank - inner + i);
  }
  return r;
}

}  // namespace portile::chain
