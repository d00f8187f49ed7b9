# Every operation, one line each: family.op is kernels/<family>/<op>.hpp (problem and contract), <op>.cpp (check, infer)
# and <op>_reference.hpp (Kokkos).
set(PORTILE_OPS
  gemm.nt
  gemm.grouped_nt
  quant.per_token_cast
)
