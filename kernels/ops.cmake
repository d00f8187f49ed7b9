# Every operation, one line each: family.op is kernels/<family>/<op>.hpp (problem and contract), <op>.cpp (check, infer)
# and <op>_reference.hpp (Kokkos).
set(PORTILE_OPS
  engram.fused_weight
  engram.gate
  engram.gather
  engram.hash
  gemm.grouped_nt
  gemm.nt
  mhc.expand
  mhc.post
  mhc.pre_apply_mix
  mhc.pre_norm_fn
  mhc.pre_split_mixes
  mhc.sinkhorn
  moe.expand_to_fused
  moe.expand_to_fused_with_sf
  moe.get_fused_mapping
  moe.moe_topk_gate_forward
  moe.normalize_weight
  moe.reduce_fused
  moe.top2_sum_gate
  moe.topk_gate
  moe.topk_sum_and_topk_group_idx
  quant.per_block_cast
  quant.per_token_cast
  quant.swiglu_forward_and_per_token_cast
)
