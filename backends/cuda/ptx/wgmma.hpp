#pragma once
// wgmma: a warpgroup multiplies a 64 x K tile of a and an N x K tile of b, both in shared memory behind
// descriptors, into fp32 registers. Register 4 j + i of a thread is column 8 j + 2 (lane % 4) + i % 2 of row
// 16 warp + lane / 4 + 8 (i / 2).
#include "backends/cuda/ptx/arch.hpp"

namespace portile::cuda::ptx {

// wgmma.fence.sync.aligned;                                                               PTX 8.0, sm_90a
PORTILE_PTX void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// wgmma.commit_group.sync.aligned;                                                        PTX 8.0, sm_90a
PORTILE_PTX void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// wgmma.wait_group.sync.aligned n;                                                        PTX 8.0, sm_90a
template <int Pending>
PORTILE_PTX void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
/// Keeps the compiler from moving reads and writes of an accumulator across the place of a wait.
template <int Count>
PORTILE_PTX void wgmma_keep(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Kinds of factors.
enum class wgmma_type { bf16, tf32, e4m3 };

// d = a b + (accumulate ? d : 0)
// wgmma.mma_async.sync.aligned.m64nNk16.f32.bf16.bf16  d, a-desc, b-desc, p, 1, 1, 0, 0;  PTX 8.0, sm_90a
// wgmma.mma_async.sync.aligned.m64nNk8.f32.tf32.tf32   d, a-desc, b-desc, p, 1, 1;        PTX 8.0, sm_90a
// wgmma.mma_async.sync.aligned.m64nNk32.f32.e4m3.e4m3  d, a-desc, b-desc, p, 1, 1;        PTX 8.0, sm_90a
template <wgmma_type Type, int N>
struct wgmma;

#define PORTILE_OUT8(i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define PORTILE_OUT32(i) PORTILE_OUT8(i), PORTILE_OUT8(i + 8), PORTILE_OUT8(i + 16), PORTILE_OUT8(i + 24)
#define PORTILE_REGISTERS16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PORTILE_OUTPUTS16 PORTILE_OUT8(0), PORTILE_OUT8(8)
#define PORTILE_REGISTERS32                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PORTILE_OUTPUTS32 PORTILE_OUT32(0)
#define PORTILE_REGISTERS48                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define PORTILE_OUTPUTS48 PORTILE_OUT32(0), PORTILE_OUT8(32), PORTILE_OUT8(40)
#define PORTILE_REGISTERS64                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PORTILE_OUTPUTS64 PORTILE_OUT32(0), PORTILE_OUT32(32)
#define PORTILE_REGISTERS88                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87"
#define PORTILE_OUTPUTS88 \
  PORTILE_OUT32(0), PORTILE_OUT32(32), PORTILE_OUT8(64), PORTILE_OUT8(72), PORTILE_OUT8(80)
#define PORTILE_REGISTERS96                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define PORTILE_OUTPUTS96 PORTILE_OUT32(0), PORTILE_OUT32(32), PORTILE_OUT32(64)
#define PORTILE_REGISTERS112                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define PORTILE_OUTPUTS112 \
  PORTILE_OUT32(0), PORTILE_OUT32(32), PORTILE_OUT32(64), PORTILE_OUT8(96), PORTILE_OUT8(104)
#define PORTILE_REGISTERS128                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PORTILE_OUTPUTS128 PORTILE_OUT32(0), PORTILE_OUT32(32), PORTILE_OUT32(64), PORTILE_OUT32(96)

#define PORTILE_WGMMA(type, n, k, name, tail, count, a, b, p)                                       \
  template <>                                                                                       \
  struct wgmma<wgmma_type::type, n> {                                                               \
    static PORTILE_PTX void multiply(float (&d)[count], std::uint64_t a_tile, std::uint64_t b_tile, \
                                     bool accumulate) {                                             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" p                                           \
                   ", 0;\n"                                                                         \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k" #k ".f32." name "." name              \
                   " {" PORTILE_REGISTERS##count "}, %" a ", %" b ", p, 1, 1" tail ";\n}"           \
                   : PORTILE_OUTPUTS##count                                                         \
                   : "l"(a_tile), "l"(b_tile), "r"(static_cast<std::uint32_t>(accumulate)));        \
    }                                                                                               \
  };

PORTILE_WGMMA(bf16, 32, 16, "bf16", ", 0, 0", 16, "16", "17", "18")
PORTILE_WGMMA(bf16, 64, 16, "bf16", ", 0, 0", 32, "32", "33", "34")
PORTILE_WGMMA(bf16, 96, 16, "bf16", ", 0, 0", 48, "48", "49", "50")
PORTILE_WGMMA(bf16, 128, 16, "bf16", ", 0, 0", 64, "64", "65", "66")
PORTILE_WGMMA(bf16, 176, 16, "bf16", ", 0, 0", 88, "88", "89", "90")
PORTILE_WGMMA(bf16, 192, 16, "bf16", ", 0, 0", 96, "96", "97", "98")
PORTILE_WGMMA(bf16, 224, 16, "bf16", ", 0, 0", 112, "112", "113", "114")
PORTILE_WGMMA(bf16, 256, 16, "bf16", ", 0, 0", 128, "128", "129", "130")
PORTILE_WGMMA(tf32, 32, 8, "tf32", "", 16, "16", "17", "18")
PORTILE_WGMMA(tf32, 64, 8, "tf32", "", 32, "32", "33", "34")
PORTILE_WGMMA(tf32, 96, 8, "tf32", "", 48, "48", "49", "50")
PORTILE_WGMMA(tf32, 128, 8, "tf32", "", 64, "64", "65", "66")
PORTILE_WGMMA(tf32, 176, 8, "tf32", "", 88, "88", "89", "90")
PORTILE_WGMMA(tf32, 192, 8, "tf32", "", 96, "96", "97", "98")
PORTILE_WGMMA(tf32, 224, 8, "tf32", "", 112, "112", "113", "114")
PORTILE_WGMMA(tf32, 256, 8, "tf32", "", 128, "128", "129", "130")
PORTILE_WGMMA(e4m3, 32, 32, "e4m3", "", 16, "16", "17", "18")
PORTILE_WGMMA(e4m3, 64, 32, "e4m3", "", 32, "32", "33", "34")
PORTILE_WGMMA(e4m3, 96, 32, "e4m3", "", 48, "48", "49", "50")
PORTILE_WGMMA(e4m3, 128, 32, "e4m3", "", 64, "64", "65", "66")
PORTILE_WGMMA(e4m3, 176, 32, "e4m3", "", 88, "88", "89", "90")
PORTILE_WGMMA(e4m3, 192, 32, "e4m3", "", 96, "96", "97", "98")
PORTILE_WGMMA(e4m3, 224, 32, "e4m3", "", 112, "112", "113", "114")
PORTILE_WGMMA(e4m3, 256, 32, "e4m3", "", 128, "128", "129", "130")

#undef PORTILE_WGMMA
#undef PORTILE_REGISTERS16
#undef PORTILE_OUTPUTS16
#undef PORTILE_REGISTERS32
#undef PORTILE_OUTPUTS32
#undef PORTILE_REGISTERS48
#undef PORTILE_OUTPUTS48
#undef PORTILE_REGISTERS64
#undef PORTILE_OUTPUTS64
#undef PORTILE_REGISTERS88
#undef PORTILE_OUTPUTS88
#undef PORTILE_REGISTERS96
#undef PORTILE_OUTPUTS96
#undef PORTILE_REGISTERS112
#undef PORTILE_OUTPUTS112
#undef PORTILE_REGISTERS128
#undef PORTILE_OUTPUTS128
#undef PORTILE_OUT32
#undef PORTILE_OUT8

}  // namespace portile::cuda::ptx
