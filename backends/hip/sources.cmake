# The kernels with matrix instructions, for CDNA parts only: file, then the implementation objects in it. hipcc and the
# emulator compile them.
set(PORTILE_MFMA_PARTS gfx90a gfx942 gfx950)
set(PORTILE_MFMA_SOURCES "")
set(PORTILE_MFMA_OBJECTS "")
foreach(op gemm_nt gemm_grouped_nt gemm_grouped_tn)
  list(APPEND PORTILE_MFMA_SOURCES ${PROJECT_SOURCE_DIR}/backends/hip/cdna/${op}.cpp)
  foreach(part IN LISTS PORTILE_MFMA_PARTS)
    list(APPEND PORTILE_MFMA_OBJECTS ${op}_mfma_${part})
  endforeach()
endforeach()
