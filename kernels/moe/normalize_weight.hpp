#pragma once
#include <portile/core/problem.hpp>

namespace portile::moe {

/// Weights of each token divided by their sum, fp32:
///   denominator[t] = 1e-20 + sum_j topk_weights[t, j]
///   normalized[t, j] = topk_weights[t, j] / denominator[t]
/// sum_order sequential adds the weights to 1e-20 in slot order; butterfly adds them as 32 lanes of xor
/// shuffles (16, 8, 4, 2, 1) do, absent lanes being 0, and then adds 1e-20. A row of zeros gives zeros.
/// Negative values, NaN and Inf propagate.
struct normalize_weight {
  static constexpr const char* name = "moe.normalize_weight";

  tensor topk_weights{};
  tensor denominator{};
  tensor normalized{};
  word sum_order = "butterfly";

  static void describe(description<normalize_weight>& d) {
    using enum dtype;
    d.summary("divide the weights of each token by their sum");
    d.tolerance("bits");
    d.in("topk_weights", &normalize_weight::topk_weights, "num_tokens, num_topk", f32, "weight of each slot")
        .contiguous();
    d.out("denominator", &normalize_weight::denominator, "num_tokens", f32, "1e-20 + sum of the weights");
    d.out("normalized", &normalize_weight::normalized, "num_tokens, num_topk", f32,
          "weights over the denominator");
    d.attribute("sum_order", &normalize_weight::sum_order,
                "order of the sum: butterfly (TileKernels v2) or sequential (v1)")
        .one_of({"butterfly", "sequential"});
    d.ignored({"api"});
    d.kept("topk_weights is contiguous");
    d.kept("num_topk <= 32 with sum_order butterfly");
    d.lifted("num_topk <= 32 with sum_order sequential");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::moe
