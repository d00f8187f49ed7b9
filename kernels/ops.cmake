# Every operation, one line each: family.op is kernels/<family>/<op>.hpp (problem and contract), <op>.cpp (check, infer)
# and <op>_reference.hpp (Kokkos).
set(PORTILE_OPS
  quant.cast_back
  quant.cast_back_e5m6
  quant.per_block_cast
  quant.per_block_cast_lossless
  quant.per_block_cast_with_precomputed_sf
  quant.per_block_cast_with_sf_only
  quant.per_channel_cast
  quant.per_channel_cast_and_transpose
  quant.per_channel_cast_fused
  quant.per_token_cast
  quant.per_token_cast_back
  quant.per_token_cast_to_e5m6
  quant.per_token_cast_with_precomputed_sf
  quant.per_token_cast_with_sf_only
  quant.swiglu_forward_and_per_token_cast
)
