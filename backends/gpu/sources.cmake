# The kernels that nvcc, hipcc and the emulator compile, one line each: file, then the implementation objects in it, best
# first within an operation.
set(PORTILE_GPU_SOURCES ${PROJECT_SOURCE_DIR}/backends/gpu/arch.cpp)
set(PORTILE_GPU_OBJECTS "")
macro(portile_gpu file)
  list(APPEND PORTILE_GPU_SOURCES ${PROJECT_SOURCE_DIR}/backends/gpu/${file})
  list(APPEND PORTILE_GPU_OBJECTS ${ARGN})
endmacro()

portile_gpu(gemm/nt.cpp gemm_nt_simt)
portile_gpu(moe/topk_gate.cpp moe_topk_gate_simt)
portile_gpu(quant/batched_transpose_weight_sf.cpp quant_batched_transpose_weight_sf_simt)
portile_gpu(quant/cast.cpp quant_cast_simt)
portile_gpu(quant/cast_back.cpp quant_cast_back_simt quant_per_token_cast_back_simt quant_cast_back_e5m6_simt)
portile_gpu(quant/formats.cpp quant_formats_simt)
portile_gpu(quant/per_block_cast.cpp quant_per_block_cast_simt quant_per_block_cast_with_precomputed_sf_simt
  quant_per_block_cast_with_sf_only_simt)
portile_gpu(quant/per_block_cast_lossless.cpp quant_per_block_cast_lossless_simt)
portile_gpu(quant/per_channel_cast.cpp quant_per_channel_cast_simt quant_per_channel_cast_and_transpose_simt
  quant_per_channel_cast_fused_simt quant_swiglu_forward_and_per_channel_cast_and_transpose_simt)
portile_gpu(quant/per_token_cast.cpp quant_per_token_cast_simt quant_per_token_cast_to_e5m6_simt
  quant_per_token_cast_with_precomputed_sf_simt quant_per_token_cast_with_sf_only_simt)
portile_gpu(quant/per_token_cast_and_cast_back.cpp quant_per_token_cast_and_cast_back_simt)
portile_gpu(quant/swiglu_backward.cpp quant_swiglu_backward_simt quant_swiglu_backward_and_per_token_cast_simt)
portile_gpu(quant/swiglu_forward.cpp quant_swiglu_forward_simt quant_swiglu_forward_and_per_token_cast_simt)
