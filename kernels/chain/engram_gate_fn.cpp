#include <portile/core/aliasing.hpp>
#include <portile/kernels/chain/engram_gate_fn.hpp>
#include <portile/kernels/chain/steps.hpp>
#include <portile/kernels/engram/fused_weight.hpp>
#include <portile/kernels/engram/gate.hpp>
#include <portile/kernels/engram/gate_backward.hpp>
#include <portile/kernels/engram/grad_w_reduce.hpp>
#include <portile/kernels/engram/kv.hpp>

namespace portile::chain {
namespace {

bool has_any_gradient(const engram_gate_fn& p) {
  return p.hidden_states_grad || p.kv_grad || p.k_grad || p.v_grad || p.weight_hidden_grad;
}

// kv[*, (mult + 1) * hidden] as [tokens, mult + 1, hidden].
tensor packed_rows(const tensor& kv, std::int64_t mult, std::int64_t hidden) {
  if (!kv) return kv;
  tensor t = flattened(kv, 1);
  t.rank = 3;
  t.extents = {t.extent(0), mult + 1, hidden};
  t.strides = {t.stride(0), hidden, 1};
  return t;
}

}  // namespace

void engram_gate_fn::check(checker& c) const {
  const std::int64_t hidden = c.dim("hidden_size");
  c.need(hidden >= 1, "hidden_size", hidden, "must be at least 1");
  if (!engram::check_kv(c, kv, k, v, "")) return;
  c.need(static_cast<float>(clamp_value) > 0, "clamp_value", clamp_value, "must be above 0 in fp32");
  const auto same_tokens = [&](const char* name, const tensor& t, int inner) {
    if (!t) return;
    const int lead = hidden_states.rank - 2;
    if (!c.need(t.rank - inner == lead, std::string(name) + ".rank", t.rank,
                "must be " + std::to_string(lead + inner) + ": hidden_states has " + std::to_string(lead) +
                    " token dimensions"))
      return;
    for (int i = 0; i < lead; ++i)
      c.need(t.extent(i) == hidden_states.extent(i),
             std::string(name) + ".extents[" + std::to_string(i) + "]", t.extent(i),
             "must be " + std::to_string(hidden_states.extent(i)) + ", as in hidden_states");
    c.need(flattens(t, inner), std::string(name) + ".strides", t,
           "its token dimensions must have one common stride");
  };
  same_tokens("hidden_states", hidden_states, 2);
  same_tokens("kv", kv, 1);
  same_tokens("k", k, 2);
  same_tokens("v", v, 1);
  same_tokens("image_token_mask", image_token_mask, 0);
  same_tokens("out_grad", out_grad, 2);
  same_tokens("out", out, 2);
  same_tokens("hidden_states_grad", hidden_states_grad, 2);
  same_tokens("kv_grad", kv_grad, 1);
  same_tokens("k_grad", k_grad, 2);
  same_tokens("v_grad", v_grad, 1);
  for (const auto& [name, t] :
       {std::pair<const char*, const tensor*>{"hidden_states_grad", &hidden_states_grad},
        {"kv_grad", &kv_grad},
        {"k_grad", &k_grad},
        {"v_grad", &v_grad},
        {"weight_hidden_grad", &weight_hidden_grad}})
    check_needs(c, name, *t, "out_grad", out_grad);
  check_needs(c, "kv_grad", kv_grad, "kv", kv);
  check_needs(c, "k_grad", k_grad, "k", k);
  check_needs(c, "v_grad", v_grad, "v", v);
  c.need_both_or_none("weight_hidden_grad", weight_hidden_grad.defined(), "weight_embed_grad",
                      weight_embed_grad.defined());
  c.need(!same_buffer(weight_embed_grad, weight_hidden_grad), "weight_embed_grad.data", weight_embed_grad,
         "must not be the buffer of weight_hidden_grad");
  c.need(!has_any_gradient(*this) || !same_buffer(out, hidden_states), "out.data", out,
         "must not be the buffer of hidden_states: the gradients need the original");
}

void engram_gate_fn::infer(inference& i) const {
  const auto like = [&](const char* name, const tensor& t) {
    const std::span<const std::int64_t> extents(t.extents.data(), static_cast<std::size_t>(t.rank));
    const extents_t strides = contiguous_strides(extents);
    i.out(name, dtype::bf16, {extents.begin(), extents.end()}, {strides.begin(), strides.begin() + t.rank});
  };
  like("out", hidden_states);
  if (!out_grad) return;
  like("hidden_states_grad", hidden_states);
  if (kv) like("kv_grad", kv);
  if (k) like("k_grad", k);
  if (v) like("v_grad", v);
  i.out("weight_hidden_grad", dtype::f32);
  i.out("weight_embed_grad", dtype::f32);
}

void engram_gate_fn::compose(composer& c) const {
  using enum dtype;
  const std::int64_t tokens = tokens_of(hidden_states, 2), mult = weight_hidden.extent(0),
                     hidden = weight_hidden.extent(1);
  const bool backward = has_any_gradient(*this);
  const tensor x = flattened(hidden_states, 2), keys = flattened(k, 2), values = flattened(v, 1),
               mask = flattened(image_token_mask, 0);
  const tensor packed = packed_rows(kv, mult, hidden);

  const tensor fused = c.temporary(f32, {mult, hidden});
  c.run(engram::fused_weight{
      .weight_hidden = weight_hidden, .weight_embed = weight_embed, .weight_fused = fused});
  const auto saved = [&] { return backward ? c.temporary(f32, {tokens, mult}) : tensor{}; };
  const tensor dot = saved(), score = saved(), rstd_x = saved(), rstd_k = saved();
  c.run(engram::gate{.hidden_states = x,
                     .kv = packed,
                     .k = keys,
                     .v = values,
                     .weight_fused = fused,
                     .image_token_mask = mask,
                     .out = flattened(out, 2),
                     .dot = dot,
                     .gate_score = score,
                     .rstd_x = rstd_x,
                     .rstd_k = rstd_k,
                     .clamp_value = clamp_value,
                     .eps = eps,
                     .add_residual = add_residual});

  if (!backward) return;
  engram::gate_backward g{.out_grad = flattened(out_grad, 2),
                          .hidden_states = x,
                          .kv = packed,
                          .k = keys,
                          .v = values,
                          .weight_fused = fused,
                          .dot = dot,
                          .gate_score = score,
                          .rstd_x = rstd_x,
                          .rstd_k = rstd_k,
                          .image_token_mask = mask,
                          .clamp_value = clamp_value,
                          .add_residual = add_residual};
  g.hidden_states_grad = or_temporary(c, flattened(hidden_states_grad, 2), bf16, {tokens, mult, hidden});
  if (kv) {
    g.kv_grad = or_temporary(c, packed_rows(kv_grad, mult, hidden), bf16, {tokens, mult + 1, hidden});
  } else {
    g.k_grad = or_temporary(c, flattened(k_grad, 2), bf16, {tokens, mult, hidden});
    g.v_grad = or_temporary(c, flattened(v_grad, 1), bf16, {tokens, hidden});
  }
  tensor fused_grad = c.temporary(f32, {1, mult, hidden});
  g.weight_fused_grad = fused_grad;
  g.weight_fused_grad.rank = 2;
  g.weight_fused_grad.extents = {mult, hidden};
  g.weight_fused_grad.strides = {hidden, 1};
  c.run(g);
  if (weight_hidden_grad)
    c.run(engram::grad_w_reduce{.weight_fused_grad_partial = fused_grad,
                                .weight_hidden = weight_hidden,
                                .weight_embed = weight_embed,
                                .weight_hidden_grad = weight_hidden_grad,
                                .weight_embed_grad = weight_embed_grad,
                                .accumulate = accumulate});
}

}  // namespace portile::chain
