# Every operation, one line each: family.op is kernels/<family>/<op>.hpp (problem and contract), <op>.cpp (check, infer)
# and <op>_reference.hpp (Kokkos).
set(PORTILE_OPS
  moe.expand_to_fused
  moe.expand_to_fused_with_sf
  moe.get_fused_mapping
  moe.normalize_weight
  moe.reduce_fused
  moe.top2_sum_gate
  moe.topk_gate
  quant.per_token_cast
)
