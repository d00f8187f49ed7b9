#include <portile/core/aliasing.hpp>
#include <portile/kernels/mhc/multilayer_recompute.hpp>
#include <portile/kernels/mhc/sizes.hpp>

namespace portile::mhc {

void multilayer_recompute::check(checker& c) const {
  check_mult(c);
  check_hidden(c);
  const std::int64_t layers = pre_mix.size, posts = layer_output.size;
  if (!c.need(layers >= 1, "pre_mix.size", layers, "must be at least 1")) return;
  c.need(layer_input.size == layers, "layer_input.size", layer_input.size,
         "must be that of pre_mix, " + std::to_string(layers));
  c.need(
      posts == layers || posts == layers - 1, "layer_output.size", posts,
      "must be that of pre_mix or one less, " + std::to_string(layers) + " or " + std::to_string(layers - 1));
  for (const auto& [field, list] :
       {std::pair{"post_mix.size", &post_mix}, {"comb_mix.size", &comb_mix}, {"residual.size", &residual}})
    c.need(list->size == posts, field, list->size, "must be that of layer_output, " + std::to_string(posts));
  for (std::int64_t l = 0; c.ok() && l < posts; ++l) {
    const tensor& before = l == 0 ? initial_residual : residual[l - 1];
    c.need(!same_buffer(residual[l], before), "residual[" + std::to_string(l) + "].data", residual[l],
           "must not be the buffer of the streams before it");
  }
}

void multilayer_recompute::infer(inference& i) const {
  i.out("layer_input", dtype::bf16);
  i.out("residual", dtype::bf16);
}

}  // namespace portile::mhc
