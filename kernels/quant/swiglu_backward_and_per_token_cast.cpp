#include <portile/kernels/quant/scales.hpp>
#include <portile/kernels/quant/swiglu_backward_and_per_token_cast.hpp>

namespace portile::quant {

void swiglu_backward_and_per_token_cast::check(checker& c) const {
  check_format(c, fmt, x_grad_fp8);
  if (!c.need_one_of<std::int64_t>("num_per_channels", num_per_channels, {32, 128})) return;
  c.need_multiple("hidden_size", c.dim("hidden_size"), num_per_channels);
  if (x.rank == 3) {
    c.need(x.extent(0) * x.extent(1) == c.dim("num_expanded_tokens"), "x", x,
           "its leading dimensions must make num_expanded_tokens rows");
    c.need(x.extent(0) <= 1 || x.numel() == 0 || x.stride(0) == x.extent(1) * x.stride(1), "x.strides[0]",
           x.stride(0), "rows must be evenly spaced");
  }
  check_weights(c, *this);
  check_weights_grad(c, *this);
  check_clamp_value(c, clamp_value);
  check_scales(c, "x_grad_fp8_sf", x_grad_fp8_sf, flags_of(*this));
}

void swiglu_backward_and_per_token_cast::infer(inference& i) const {
  bind_hidden_size(i, *this);
  i.out("x_grad_fp8", dtype::e4m3);
  infer_scales(i, "x_grad_fp8_sf", i.dim("num_expanded_tokens"),
               blocks(2 * i.dim("hidden_size"), num_per_channels), flags_of(*this));
  i.out("x_grad", dtype::bf16);
  if (topk_weights) {
    if (topk_weights.rank == 2)
      i.out("topk_weights_grad", dtype::f32);
    else
      i.out("topk_weights_grad", dtype::f32, {topk_weights.extent(0)}, {1});
  }
  if (act_out) i.out("act_out", dtype::bf16);
}

}  // namespace portile::quant
