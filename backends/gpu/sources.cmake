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
portile_gpu(quant/per_token_cast.cpp quant_per_token_cast_simt)
portile_gpu(rand/philox.cpp rand_philox_simt rand_seed_mix_simt)
portile_gpu(rand/randn.cpp rand_randn_simt rand_randn_like_simt)
portile_gpu(transpose/transpose.cpp transpose_transpose_simt transpose_batched_simt)
