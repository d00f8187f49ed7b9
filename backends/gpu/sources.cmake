# The kernels that nvcc, hipcc and the emulator compile, one line each: file, then the implementation objects in it, best
# first within an operation.
set(PORTILE_GPU_SOURCES ${PROJECT_SOURCE_DIR}/backends/gpu/arch.cpp)
set(PORTILE_GPU_OBJECTS "")
macro(portile_gpu file)
  list(APPEND PORTILE_GPU_SOURCES ${PROJECT_SOURCE_DIR}/backends/gpu/${file})
  list(APPEND PORTILE_GPU_OBJECTS ${ARGN})
endmacro()

portile_gpu(gemm/nt.cpp gemm_nt_simt)
portile_gpu(mhc/expand.cpp mhc_expand_simt mhc_expand_backward_simt)
portile_gpu(mhc/fn_normw_merge.cpp mhc_fn_normw_merge_simt mhc_fn_normw_merge_backward_simt)
portile_gpu(mhc/multilayer_recompute.cpp mhc_multilayer_recompute_simt)
portile_gpu(mhc/post.cpp mhc_post_simt mhc_post_backward_simt)
portile_gpu(mhc/pre.cpp mhc_pre_simt mhc_pre_big_fuse_simt)
portile_gpu(mhc/pre_apply_mix.cpp mhc_pre_apply_mix_simt mhc_pre_apply_mix_backward_simt)
portile_gpu(mhc/pre_norm_fn.cpp mhc_pre_norm_fn_simt mhc_pre_norm_fn_partials_simt)
portile_gpu(mhc/pre_norm_fn_backward.cpp mhc_pre_norm_fn_backward_simt mhc_block_backward_simt)
portile_gpu(mhc/pre_split_mixes.cpp mhc_pre_split_mixes_simt mhc_pre_split_mixes_backward_simt
  mhc_head_compute_mix_simt mhc_head_compute_mix_backward_simt)
portile_gpu(mhc/reduce_partials_and_rmsnorm.cpp mhc_reduce_partials_and_rmsnorm_simt
  mhc_reduce_partials_and_rmsnorm_backward_simt)
portile_gpu(mhc/sinkhorn.cpp mhc_sinkhorn_simt mhc_sinkhorn_backward_simt)
portile_gpu(moe/topk_gate.cpp moe_topk_gate_simt)
portile_gpu(quant/per_token_cast.cpp quant_per_token_cast_simt)
