#pragma once
// Rules that the SwiGLU operations share: which rows count, their weights, the clamp. Host only.
#include <optional>

#include <portile/core/check.hpp>
#include <portile/core/numeric/integer.hpp>

namespace portile::quant {

/// Rules that only the data can break, in the order in which reference/swiglu.hpp numbers them.
template <class P>
void describe_routing_traps(description<P>& d) {
  d.trap("psum_num_tokens_per_expert: segments must follow one another and end within the rows");
  if constexpr (requires(P p) { p.pos_to_token_topk; })
    d.trap("pos_to_token_topk: must be below num_tokens * num_topk");
}

/// Row weights: topk_weights has one entry per row, or, with pos_to_token_topk, is the matrix that it points
/// into.
template <class P>
bool check_weights(checker& c, const P& p) {
  bool fine = true;
  if constexpr (requires { p.pos_to_token_topk; }) {
    const bool mapped = p.pos_to_token_topk.defined();
    fine = c.need(!mapped || p.topk_weights.defined(), "topk_weights", "absent",
                  "must be given together with pos_to_token_topk") &&
           c.need(!p.topk_weights.defined() || (p.topk_weights.rank == 2) == mapped, "topk_weights.rank",
                  p.topk_weights.rank,
                  mapped ? "must be 2: pos_to_token_topk points into it"
                         : "must be 1 without pos_to_token_topk");
  }
  if constexpr (requires { p.pos_to_expert; })
    fine = fine &&
           c.need(!(p.pos_to_expert.defined() && p.psum_num_tokens_per_expert.defined()), "pos_to_expert",
                  p.pos_to_expert, "must be absent: psum_num_tokens_per_expert says which rows count");
  return fine &&
         c.need(!p.routed_scaling_factor || p.topk_weights.defined(), "routed_scaling_factor",
                p.routed_scaling_factor, "needs topk_weights") &&
         c.need(p.token_alignment > 0, "token_alignment", p.token_alignment, "must be positive");
}

inline bool check_clamp_value(checker& c, const std::optional<double>& v) {
  return c.need(!v || *v >= 0, "clamp_value", v, "must not be negative");
}

/// The clamp and its counters: [0] left above, [1] right above, [2] right below, [3] activations.
template <class P>
bool check_clamp(checker& c, const P& p, bool three_counters) {
  if (!check_clamp_value(c, p.clamp_value)) return false;
  if (!p.clamped_count.defined()) return true;
  const std::int64_t n = p.clamped_count.extent(0), rows = c.dim("num_expanded_tokens"),
                     width = c.dim("hidden_size");
  const std::int64_t work = numeric::ceil_div(width, 32);
  return c.need(p.clamp_value.has_value(), "clamped_count", p.clamped_count, "needs clamp_value") &&
         c.need(n == 4 || (three_counters && n == 3), "clamped_count.extents[0]", n,
                three_counters ? "must be 3 or 4" : "must be 4") &&
         c.need(work == 0 || rows <= 2147483647 / work, "num_expanded_tokens", rows,
                "times ceil(hidden_size, 32) must be at most 2^31 - 1 with clamped_count");
}

/// Gradient of the weights: of the same rank as the weights; in matrix form it needs the map from choices to
/// rows.
template <class P>
bool check_weights_grad(checker& c, const P& p) {
  const tensor& g = p.topk_weights_grad;
  if (!g.defined()) return true;
  if (!c.need(p.topk_weights.defined(), "topk_weights_grad", g, "needs topk_weights") ||
      !c.need(g.rank == p.topk_weights.rank, "topk_weights_grad.rank", g.rank,
              "must be that of topk_weights, " + std::to_string(p.topk_weights.rank)))
    return false;
  if constexpr (requires { p.token_topk_to_pos; })
    return c.need(g.rank == 1 || p.token_topk_to_pos.defined(), "token_topk_to_pos", "absent",
                  "is required for a topk_weights_grad of rank 2");
  return true;
}

/// infer: x holds two halves of hidden_size columns.
template <class P>
void bind_hidden_size(inference& i, const P& p) {
  if (p.x.defined() && p.x.rank > 0)
    i.bind("hidden_size", value_extent(p.x.dtype, p.x.extent(p.x.rank - 1)) / 2);
}

}  // namespace portile::quant
