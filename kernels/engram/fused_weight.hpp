#pragma once
#include <portile/core/problem.hpp>

namespace portile::engram {

/// weight_fused = weight_hidden * weight_embed, element by element in fp32. The product of two bf16 is exact
/// but for subnormal results, which are rounded to nearest even and kept.
struct fused_weight {
  static constexpr const char* name = "engram.fused_weight";

  tensor weight_hidden{};
  tensor weight_embed{};
  tensor weight_fused{};

  static void describe(description<fused_weight>& d) {
    using enum dtype;
    d.summary("product of the two RMS weights of the engram gate");
    d.tolerance("bits");
    d.in("weight_hidden", &fused_weight::weight_hidden, "mhc_mult, hidden_size", {bf16},
         "weight of the hidden states");
    d.in("weight_embed", &fused_weight::weight_embed, "mhc_mult, hidden_size", {bf16}, "weight of the keys");
    d.out("weight_fused", &fused_weight::weight_fused, "mhc_mult, hidden_size", {f32}, "their product");
    d.lifted("hidden_size is a multiple of 256");
  }
  void check(checker&) const {}
  void infer(inference& i) const;
};

}  // namespace portile::engram
