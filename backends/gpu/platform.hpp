#pragma once
// What GPU code is written with, and the only file that knows for which machine it is compiled: CUDA, HIP, or
// the host emulator of tests/emulator. A kernel is a class
//
//   struct K {
//     static constexpr int threads = 256;   // of a block
//     static constexpr int min_blocks = 2;  // may be left out: blocks that a CUDA multiprocessor is to hold
//     struct params { ... };                // trivially copyable, at most 4 KB
//     template <class Block> static PORTILE_DEVICE void run(Block& block, const params& p);
//   };
//
// started by launch<K>. Everything that lanes do together goes through `block`. All lanes of a wave take part
// in a shuffle, ballot or reduction, and all threads of a block in a barrier: loops around them are uniform.
// A kernel takes any grid: it loops from block.index() in steps of block.grid().
#include <math.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/e2m1.hpp>
#include <portile/core/numeric/e4m3.hpp>
#include <portile/core/numeric/f16.hpp>
#include <portile/core/numeric/integer.hpp>
#include <portile/core/plugin.hpp>

#if defined(PORTILE_EMULATOR)
#include "tests/emulator/engine.hpp"
#define PORTILE_DEVICE inline
#define PORTILE_UNROLL
#define PORTILE_NO_UNROLL
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define PORTILE_GPU_HIP 1
#define PORTILE_DEVICE __device__ __forceinline__
#define PORTILE_UNROLL _Pragma("unroll")
#define PORTILE_NO_UNROLL _Pragma("unroll 1")
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#define PORTILE_GPU_CUDA 1
#define PORTILE_DEVICE __device__ __forceinline__
#define PORTILE_UNROLL _Pragma("unroll")
#define PORTILE_NO_UNROLL _Pragma("unroll 1")
#else
#error "backends/gpu is compiled by nvcc, by hipcc, or for the emulator"
#endif

// A function of the vendor's run-time API: PORTILE_GPU_API(Malloc) is cudaMalloc or hipMalloc.
#if defined(PORTILE_GPU_CUDA)
#define PORTILE_GPU_API(name) cuda##name
using cudaDeviceProp_t = cudaDeviceProp;
#elif defined(PORTILE_GPU_HIP)
#define PORTILE_GPU_API(name) hip##name
#endif

namespace portile::gpu {

#if defined(PORTILE_GPU_CUDA)
inline constexpr device_kind platform_kind = device_kind::cuda;
inline constexpr const char* platform_name = "cuda";
inline constexpr const char* simt_name = "cuda.simt";
#elif defined(PORTILE_GPU_HIP)
inline constexpr device_kind platform_kind = device_kind::hip;
inline constexpr const char* platform_name = "hip";
inline constexpr const char* simt_name = "hip.simt";
#else
// The plug-ins of the emulator give its entries the kind of the device that they pretend to have.
inline constexpr device_kind platform_kind = device_kind::cuda;
inline constexpr const char* platform_name = "emulated";
inline constexpr const char* simt_name = "emulated.simt";
#endif

// ------------------------------------------------------------------------------------------------------------
// the block

#if defined(PORTILE_EMULATOR)
template <int Threads, int Wave>
using block = emulator::block<Threads, Wave>;
#else

#if defined(PORTILE_GPU_HIP) && defined(__GFX9__)
inline constexpr int wave_lanes = 64;
#else
inline constexpr int wave_lanes = 32;
#endif

/// The block of threads that runs a kernel's body, as one of its threads sees it.
template <int Threads>
struct block {
  static constexpr int threads = Threads;
  static constexpr int wave_size = wave_lanes;
  static constexpr int num_waves = Threads / wave_size;

  PORTILE_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  PORTILE_DEVICE int lane() const { return thread() % wave_size; }
  PORTILE_DEVICE int wave() const { return thread() / wave_size; }
  PORTILE_DEVICE std::int64_t index() const { return blockIdx.x; }
  PORTILE_DEVICE std::int64_t grid() const { return gridDim.x; }

  /// Shared memory from byte `offset` on (a multiple of 16), as many bytes as the launch asked for.
  template <class T>
  PORTILE_DEVICE T* shared(std::size_t offset = 0) const {
    extern __shared__ __align__(16) unsigned char portile_shared_memory[];
    return reinterpret_cast<T*>(portile_shared_memory + offset);
  }
  PORTILE_DEVICE void barrier() const { __syncthreads(); }

  // Values of 4 or 8 bytes.
#if defined(PORTILE_GPU_CUDA)
  template <class T>
  PORTILE_DEVICE T shuffle(T v, int source) const {
    return __shfl_sync(~0u, v, source);
  }
  template <class T>
  PORTILE_DEVICE T shuffle_xor(T v, int mask) const {
    return __shfl_xor_sync(~0u, v, mask);
  }
  template <class T>
  PORTILE_DEVICE T shuffle_down(T v, int delta) const {
    return __shfl_down_sync(~0u, v, static_cast<unsigned>(delta));
  }
  /// Bit l is the predicate of lane l.
  PORTILE_DEVICE std::uint64_t ballot(bool predicate) const { return __ballot_sync(~0u, predicate); }
#else
  template <class T>
  PORTILE_DEVICE T shuffle(T v, int source) const {
    return __shfl(v, source, wave_size);
  }
  template <class T>
  PORTILE_DEVICE T shuffle_xor(T v, int mask) const {
    return __shfl_xor(v, mask, wave_size);
  }
  template <class T>
  PORTILE_DEVICE T shuffle_down(T v, int delta) const {
    return __shfl_down(v, static_cast<unsigned>(delta), wave_size);
  }
  PORTILE_DEVICE std::uint64_t ballot(bool predicate) const { return __ballot(predicate); }
#endif

  /// Whether mma_tf32_16x8x8 is there. The host asks gpu::has_mma_tf32.
#if defined(PORTILE_GPU_CUDA) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800)
  static constexpr bool has_mma_tf32 = true;
#else
  static constexpr bool has_mma_tf32 = false;
#endif
#if defined(PORTILE_GPU_CUDA)
  /// sum += a * b, matrices of 16 x 8 and 8 x 8 tf32 values (fp32 whose low 13 bits are 0) that lie across
  /// the wave's lanes. The products are exact; they are added in fp32, in an order and with a rounding that
  /// are the machine's own. With g = lane / 4 and q = lane % 4, as (row, column), a lane has
  ///   a: (g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4);  b: (q, g), (q + 4, g)
  ///   sum: (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1)
  PORTILE_DEVICE void mma_tf32_16x8x8(float (&sum)[4], const float (&a)[4], const float (&b)[2]) const {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#endif
  }
#endif

  /// Copies 16 bytes to shared memory; they are there after this thread's next wait_copies(), for other
  /// threads after a barrier as well. Addresses are multiples of 16.
  PORTILE_DEVICE void copy16_async(void* shared, const void* global) const {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))), "l"(global)
                 : "memory");
#else
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
  }
  PORTILE_DEVICE void wait_copies() const {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" : : : "memory");
#endif
  }
  /// Starts bringing the 128 bytes around an address nearer to the multiprocessors.
  PORTILE_DEVICE void prefetch(const void* global) const {
#if defined(PORTILE_GPU_CUDA)
    asm volatile("prefetch.global.L2 [%0];" : : "l"(global));
#else
    (void)global;
#endif
  }

  /// The value of the lane `delta` before; the first lanes keep their own.
  template <class T>
  PORTILE_DEVICE T shuffle_up(T v, int delta) const {
    const T other = shuffle(v, lane() - delta);
    return lane() < delta ? v : other;
  }

  /// Integer atomics on global or shared memory (4 or 8 bytes, unsigned); they return what was there before.
  template <class T>
  PORTILE_DEVICE T atomic_add(T* p, T v) const {
    return static_cast<T>(atomicAdd(atomic_word(p), static_cast<atomic_type<T>>(v)));
  }
  template <class T>
  PORTILE_DEVICE T atomic_min(T* p, T v) const {
    return static_cast<T>(atomicMin(atomic_word(p), static_cast<atomic_type<T>>(v)));
  }
  template <class T>
  PORTILE_DEVICE T atomic_max(T* p, T v) const {
    return static_cast<T>(atomicMax(atomic_word(p), static_cast<atomic_type<T>>(v)));
  }
  template <class T>
  PORTILE_DEVICE T atomic_or(T* p, T v) const {
    return static_cast<T>(atomicOr(atomic_word(p), static_cast<atomic_type<T>>(v)));
  }
  /// Makes this thread's writes to global memory visible on the device before its later ones.
  PORTILE_DEVICE void device_fence() const { __threadfence(); }
  /// Orders the shared-memory accesses of a wave's lanes.
  PORTILE_DEVICE void wave_barrier() const {
#if defined(PORTILE_GPU_CUDA)
    __syncwarp();
#else
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
#endif
  }

  /// The largest value of the wave, in every lane.
  PORTILE_DEVICE std::uint32_t wave_max(std::uint32_t v) const {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, v);
#else
    for (int m = wave_size / 2; m > 0; m /= 2) {
      const std::uint32_t other = shuffle_xor(v, m);
      v = other > v ? other : v;
    }
    return v;
#endif
  }

 private:
  template <class T>
  using atomic_type = std::conditional_t<sizeof(T) == 4, unsigned int, unsigned long long>;
  template <class T>
  static PORTILE_DEVICE atomic_type<T>* atomic_word(T* p) {
    static_assert(std::is_integral_v<T> && std::is_unsigned_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    return reinterpret_cast<atomic_type<T>*>(p);
  }
};
#endif

/// True when kernels for this device have mma_tf32_16x8x8.
inline bool has_mma_tf32(const portile_device_info& device) {
#if defined(PORTILE_GPU_HIP)
  (void)device;
  return false;
#else
  // Code for a part without them may be translated for one that has them.
  constexpr bool built = std::string_view(PORTILE_GPU_ARCHS).find("_7") == std::string_view::npos;
  return built && (device.aspects >> static_cast<unsigned>(aspect::tf32_mma) & 1) != 0;
#endif
}

/// Columns of a product's tile of 128 rows: a thread's share of the results has to fit its registers.
#if defined(PORTILE_GPU_HIP)
inline constexpr int tile_columns = 64;
#else
inline constexpr int tile_columns = 128;
#endif

/// The first lane whose bit is set; the mask is not 0.
PORTILE_DEVICE int first_lane(std::uint64_t mask) {
#if defined(PORTILE_EMULATOR)
  return __builtin_ctzll(mask);
#else
  return __ffsll(static_cast<long long>(mask)) - 1;
#endif
}

/// How many bits are set.
PORTILE_DEVICE int count_lanes(std::uint64_t mask) {
#if defined(PORTILE_EMULATOR)
  return __builtin_popcountll(mask);
#else
  return __popcll(mask);
#endif
}

// ----------------------------------------------------------------------------------------------------------------
// memory

/// Words that one instruction loads or stores; addresses are multiples of the size.
struct alignas(16) words4 {
  std::uint32_t w[4];
};
struct alignas(8) words2 {
  std::uint32_t w[2];
};

#if defined(PORTILE_EMULATOR)
inline words4 load16(const void* p) { return emulator::aligned_load<words4>(p); }
inline words2 load8(const void* p) { return emulator::aligned_load<words2>(p); }
inline std::uint32_t load4(const void* p) { return emulator::aligned_load<std::uint32_t>(p); }
inline void store16(void* p, words4 v) { emulator::aligned_store(p, v); }
inline void store8(void* p, words2 v) { emulator::aligned_store(p, v); }
inline void store4(void* p, std::uint32_t v) { emulator::aligned_store(p, v); }
#else
PORTILE_DEVICE words4 load16(const void* p) {
  const uint4 v = *static_cast<const uint4*>(p);
  return {{v.x, v.y, v.z, v.w}};
}
PORTILE_DEVICE words2 load8(const void* p) {
  const uint2 v = *static_cast<const uint2*>(p);
  return {{v.x, v.y}};
}
PORTILE_DEVICE std::uint32_t load4(const void* p) { return *static_cast<const std::uint32_t*>(p); }
PORTILE_DEVICE void store16(void* p, words4 v) {
  *static_cast<uint4*>(p) = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
}
PORTILE_DEVICE void store8(void* p, words2 v) { *static_cast<uint2*>(p) = make_uint2(v.w[0], v.w[1]); }
PORTILE_DEVICE void store4(void* p, std::uint32_t v) { *static_cast<std::uint32_t*>(p) = v; }
#endif

/// Reports data that breaks rule number `rule` of the contract at this flat index; the smallest index is
/// kept.
PORTILE_DEVICE void raise_trap(std::uint64_t* trap, unsigned rule, std::int64_t index) {
  if (!trap) return;
  const auto value = static_cast<unsigned long long>(index) * 256 + rule;
#if defined(PORTILE_EMULATOR)
  emulator::races::begin_atomic();
  if (value < *trap) *trap = value;
  emulator::races::end_atomic();
#else
  atomicMin(reinterpret_cast<unsigned long long*>(trap), value);
#endif
}

// -----------------------------------------------------------------------------------------------------------
// conversions Instructions where the hardware has them with the bits of core/numeric, and core/numeric itself
// elsewhere. HIP uses core/numeric throughout until a device is at hand to prove its instructions equal.

/// The larger and the smaller of `x` and a number: the number when x is a NaN. One instruction.
PORTILE_DEVICE float max_number(float x, float number) {
#if defined(PORTILE_EMULATOR)
  return x > number ? x : number;
#else
  return fmaxf(x, number);
#endif
}
PORTILE_DEVICE float min_number(float x, float number) {
#if defined(PORTILE_EMULATOR)
  return x < number ? x : number;
#else
  return fminf(x, number);
#endif
}

/// The larger of two, a NaN if one is.
PORTILE_DEVICE float max_or_nan(float a, float b) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
#else
  return numeric::is_nan(a) || a > b ? a : b;
#endif
}

/// Two values as bf16, the first one in the low half; the bits of numeric::to_bf16, NaN included.
PORTILE_DEVICE std::uint32_t to_bf16x2(float first, float second) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  // The instruction's NaN is 0x7FFF, the only result above 0x7FC0 in signed order.
#if __CUDA_ARCH__ >= 900
  asm("min.s16x2 %0, %1, %2;" : "=r"(pair) : "r"(pair), "r"(0x7FC07FC0u));
  return pair;
#endif
  if (numeric::is_nan(first)) pair = (pair & 0xFFFF0000u) | 0x7FC0u;
  if (numeric::is_nan(second)) pair = (pair & 0x0000FFFFu) | 0x7FC00000u;
  return pair;
#else
  return std::uint32_t{numeric::to_bf16(first).bits} | std::uint32_t{numeric::to_bf16(second).bits} << 16;
#endif
}
/// One step of amax for two bf16 at once: the larger of `amax` and the magnitudes in `pair`, NaN ignored.
PORTILE_DEVICE std::uint32_t amax_bf16x2(std::uint32_t amax, std::uint32_t pair) {
  pair &= 0x7FFF7FFFu;
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  asm("max.bf16x2 %0, %1, %2;" : "=r"(amax) : "r"(amax), "r"(pair));
  return amax;
#else
  // Magnitudes are in the order of their bits, and a NaN is above Inf.
  const auto half = [](std::uint32_t a, std::uint32_t x) { return x > a && x <= 0x7F80u ? x : a; };
  return half(amax & 0xFFFFu, pair & 0xFFFFu) | half(amax >> 16, pair >> 16) << 16;
#endif
}
/// The larger and the smaller ones of two pairs of 16-bit integers.
PORTILE_DEVICE std::uint32_t max_u16x2(std::uint32_t a, std::uint32_t b) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 900
  asm("max.u16x2 %0, %1, %2;" : "=r"(a) : "r"(a), "r"(b));
  return a;
#else
  const std::uint32_t low = (a & 0xFFFFu) > (b & 0xFFFFu) ? a & 0xFFFFu : b & 0xFFFFu;
  return low | ((a >> 16) > (b >> 16) ? a >> 16 : b >> 16) << 16;
#endif
}
PORTILE_DEVICE std::uint32_t min_u16x2(std::uint32_t a, std::uint32_t b) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 900
  asm("min.u16x2 %0, %1, %2;" : "=r"(a) : "r"(a), "r"(b));
  return a;
#else
  return ~max_u16x2(~a, ~b);
#endif
}
/// a * b + c of two bf16 at once, rounded once.
PORTILE_DEVICE std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(a) : "r"(a), "r"(b), "r"(c));
  return a;
#else
  const auto half = [](std::uint32_t x, std::uint32_t y, std::uint32_t z) -> std::uint32_t {
    // The product is exact in fp64; the sum is rounded to odd, which keeps what the second rounding must
    // know.
    const double product = double{numeric::bits_float(x << 16)} * double{numeric::bits_float(y << 16)};
    const double addend = numeric::bits_float(z << 16), sum = product + addend, rest = sum - product;
    const double error = (product - (sum - rest)) + (addend - rest);
    auto bits = std::bit_cast<std::uint64_t>(sum);
    if (error != 0 && bits % 2 == 0) bits = (error > 0) == (sum > 0) ? bits + 1 : bits - 1;
    return numeric::double_to_bf16(error == error ? std::bit_cast<double>(bits) : sum).bits;
  };
  return half(a & 0xFFFFu, b & 0xFFFFu, c & 0xFFFFu) | half(a >> 16, b >> 16, c >> 16) << 16;
#endif
}
/// The smaller ones of two pairs of bf16; a number when the other is a NaN.
PORTILE_DEVICE std::uint32_t min_bf16x2(std::uint32_t a, std::uint32_t b) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  asm("min.bf16x2 %0, %1, %2;" : "=r"(a) : "r"(a), "r"(b));
  return a;
#else
  const auto half = [](std::uint32_t x, std::uint32_t y) {
    const float u = numeric::bits_float(x << 16), v = numeric::bits_float(y << 16);
    return numeric::is_nan(u) || v < u ? y : x;
  };
  return half(a & 0xFFFFu, b & 0xFFFFu) | half(a >> 16, b >> 16) << 16;
#endif
}
/// Two fp16 as fp32, the low half first.
PORTILE_DEVICE void from_f16x2(std::uint32_t pair, float& first, float& second) {
#if defined(PORTILE_GPU_CUDA)
  asm("{\n"
      ".reg .b16 lo, hi;\n"
      "mov.b32 {lo, hi}, %2;\n"
      "cvt.f32.f16 %0, lo;\n"
      "cvt.f32.f16 %1, hi;\n"
      "}"
      : "=f"(first), "=f"(second)
      : "r"(pair));
#else
  first = numeric::to_float(numeric::f16{static_cast<std::uint16_t>(pair)});
  second = numeric::to_float(numeric::f16{static_cast<std::uint16_t>(pair >> 16)});
#endif
}
/// Two numbers as fp16 toward zero, the first one in the low half. What is too large gives the largest finite
/// fp16 or Inf.
PORTILE_DEVICE std::uint32_t to_f16x2_toward_zero(float first, float second) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  std::uint32_t pair;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return std::uint32_t{numeric::to_f16_rtz(first).bits} | std::uint32_t{numeric::to_f16_rtz(second).bits}
                                                              << 16;
#endif
}
/// Bytes chosen out of the eight of `low` and `high` (0..7, `low` first) by the nibbles of `selector`, the
/// first for the low byte. A selector with bit 3 gives eight copies of the chosen byte's highest bit.
PORTILE_DEVICE std::uint32_t byte_permute(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
#if defined(PORTILE_GPU_CUDA)
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
#else
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  std::uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t choice = selector >> (4 * i);
    const auto byte = static_cast<std::uint32_t>(both >> (8 * (choice & 7u))) & 0xFFu;
    bytes |= ((choice & 8u) == 0 ? byte : byte >> 7 != 0 ? 0xFFu : 0u) << (8 * i);
  }
  return bytes;
#endif
}
/// Two values as e4m3 codes, the first one in the low byte.
PORTILE_DEVICE std::uint16_t to_e4m3x2(float first, float second) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 890
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
#else
  return static_cast<std::uint16_t>(numeric::to_e4m3(first).bits | numeric::to_e4m3(second).bits << 8);
#endif
}
PORTILE_DEVICE std::uint32_t to_e4m3x4(float a, float b, float c, float d) {
  return std::uint32_t{to_e4m3x2(a, b)} | std::uint32_t{to_e4m3x2(c, d)} << 16;
}
/// A NaN code gives some NaN.
PORTILE_DEVICE void from_e4m3x2(std::uint16_t codes, float& first, float& second) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 890
  asm("{\n"
      ".reg .b32 halves;\n"
      ".reg .b16 lo, hi;\n"
      "cvt.rn.f16x2.e4m3x2 halves, %2;\n"
      "mov.b32 {lo, hi}, halves;\n"
      "cvt.f32.f16 %0, lo;\n"
      "cvt.f32.f16 %1, hi;\n"
      "}"
      : "=f"(first), "=f"(second)
      : "h"(codes));
#else
  first = numeric::to_float(numeric::e4m3{static_cast<std::uint8_t>(codes)});
  second = numeric::to_float(numeric::e4m3{static_cast<std::uint8_t>(codes >> 8)});
#endif
}

// -----------------------------------------------------------------------------------------------------------
// fast arithmetic

/// 1 / x for 2^-126 < x < 2^126, correctly rounded: the compiler's own steps for such x without its test for
/// others.
PORTILE_DEVICE float reciprocal_of_normal(float x) {
#if defined(PORTILE_GPU_CUDA)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return ::fmaf(y, -::fmaf(x, y, -1.0f), y);
#else
  return 1.0f / x;
#endif
}

/// 1 / x and 2^x with a relative error of at most 2^-22; results below the normal numbers may be 0. The
/// emulator's are wrong on purpose, so that nothing relies on more than this bound.
PORTILE_DEVICE float reciprocal_estimate(float x) {
#if defined(PORTILE_GPU_CUDA)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#elif defined(PORTILE_GPU_HIP)
  return 1.0f / x;
#else
  return (1.0f / x) * (numeric::float_bits(x) % 2 ? 1.0f + 0x1p-23f : 1.0f - 0x1p-23f);
#endif
}
PORTILE_DEVICE float exp2_estimate(float x) {
#if defined(PORTILE_GPU_CUDA)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#elif defined(PORTILE_GPU_HIP)
  return exp2f(x);
#else
  return ::exp2f(x) * (numeric::float_bits(x) % 2 ? 1.0f + 0x1p-23f : 1.0f - 0x1p-23f);
#endif
}

/// log2(x) with an error of 2^-22, relative to it for x outside of 1/2 to 2; sqrt(x) with a relative one of
/// 2^-22.
PORTILE_DEVICE float log2_estimate(float x) {
#if defined(PORTILE_GPU_CUDA)
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#elif defined(PORTILE_GPU_HIP)
  return log2f(x);
#else
  return ::log2f(x) + (numeric::float_bits(x) % 2 ? 0x1p-23f : -0x1p-23f);
#endif
}
PORTILE_DEVICE float sqrt_estimate(float x) {
#if defined(PORTILE_GPU_CUDA)
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#elif defined(PORTILE_GPU_HIP)
  return sqrtf(x);
#else
  return ::sqrtf(x) * (numeric::float_bits(x) % 2 ? 1.0f + 0x1p-23f : 1.0f - 0x1p-23f);
#endif
}

/// to_bf16x2 where neither is a NaN.
PORTILE_DEVICE std::uint32_t numbers_to_bf16x2(float first, float second) {
#if defined(PORTILE_GPU_CUDA) && __CUDA_ARCH__ >= 800
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return to_bf16x2(first, second);
#endif
}

// ----------------------------------------------------------------------------------------------------------------
// launch

/// Fills global memory with a byte, in the stream's order.
inline void fill(const struct context& c, void* p, int byte, std::size_t bytes);

/// Where and how a launch runs; made by make_simt below.
struct context {
  const portile_launch& call;
  bool prepare;  ///< load the kernels that this problem takes and start nothing: what a plan does
};

#if !defined(PORTILE_EMULATOR)

/// Turns an error of the vendor's run time into an exception and takes it off the run time's record.
inline void require_success(PORTILE_GPU_API(Error_t) e, const char* what) {
  if (e == PORTILE_GPU_API(Success)) return;
  (void)PORTILE_GPU_API(GetLastError)();
  const bool memory = e == PORTILE_GPU_API(ErrorMemoryAllocation);
  throw error(memory ? status_code::out_of_memory : status_code::device_error,
              std::string(what) + ": " + PORTILE_GPU_API(GetErrorString)(e));
}

/// Makes a device current for its scope.
class current_device {
 public:
  explicit current_device(int ordinal) {
    require_success(PORTILE_GPU_API(GetDevice)(&before_), "get the current device");
    if (ordinal == before_) return;
    require_success(PORTILE_GPU_API(SetDevice)(ordinal), "set the current device");
    changed_ = true;
  }
  ~current_device() {
    if (changed_) (void)PORTILE_GPU_API(SetDevice)(before_);
  }
  current_device(const current_device&) = delete;
  current_device& operator=(const current_device&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// Bytes of dynamic shared memory that a kernel gets without asking.
inline constexpr std::size_t default_shared_bytes = 48 * 1024;

#if defined(PORTILE_GPU_CUDA)
/// 0: the compiler uses as many registers as it likes.
template <class K>
constexpr int min_blocks() {
  if constexpr (requires { K::min_blocks; })
    return K::min_blocks;
  else
    return 0;
}
template <class K>
__global__ void __launch_bounds__(K::threads, min_blocks<K>())
    kernel_entry(const __grid_constant__ typename K::params p) {
  block<K::threads> b;
  K::run(b, p);
}
#else
template <class K>
__global__ void __launch_bounds__(K::threads) kernel_entry(const typename K::params p) {
  block<K::threads> b;
  K::run(b, p);
}
#endif
#endif

inline void fill(const context& c, void* p, int byte, std::size_t bytes) {
  if (c.prepare || bytes == 0) return;
#if defined(PORTILE_EMULATOR)
  std::memset(p, byte, bytes);
#else
  const current_device guard(c.call.device->ordinal);
  require_success(
      PORTILE_GPU_API(MemsetAsync)(p, byte, bytes, static_cast<PORTILE_GPU_API(Stream_t)>(c.call.stream)),
      "fill");
#endif
}

/// Copies device memory to the host and waits for it: only for outputs in host memory.
inline void read_back(const context& c, void* to, const void* from, std::size_t bytes) {
  if (c.prepare || bytes == 0) return;
#if defined(PORTILE_EMULATOR)
  std::memcpy(to, from, bytes);
#else
  const current_device guard(c.call.device->ordinal);
  const auto stream = static_cast<PORTILE_GPU_API(Stream_t)>(c.call.stream);
  require_success(PORTILE_GPU_API(MemcpyAsync)(to, from, bytes, PORTILE_GPU_API(MemcpyDeviceToHost), stream),
                  "copy to the host");
  require_success(PORTILE_GPU_API(StreamSynchronize)(stream), "wait for a copy to the host");
#endif
}

/// Starts K on at most `blocks` blocks with `shared_bytes` of shared memory; nothing for 0 blocks.
template <class K>
void launch(const context& c, std::int64_t blocks, std::size_t shared_bytes, const typename K::params& p) {
  static_assert(K::threads % 64 == 0, "whole waves, on every device");
  const portile_launch& l = c.call;
  if (blocks <= 0) return;
  // A share of the device: as many blocks as its multiprocessors hold.
  if (l.num_sms > 0)
    blocks = std::min<std::int64_t>(blocks, std::int64_t{l.num_sms} * std::max(1, 2048 / K::threads));
  if (l.max_blocks > 0) blocks = std::min<std::int64_t>(blocks, l.max_blocks);
  blocks = std::min<std::int64_t>(blocks, 0x7fffffff);
#if defined(PORTILE_EMULATOR)
  if (c.prepare) return;
  if (l.device->wave_size == 64)
    emulator::run_grid<K, 64>(blocks, shared_bytes, p);
  else
    emulator::run_grid<K, 32>(blocks, shared_bytes, p);
#else
  const void* entry = reinterpret_cast<const void*>(&kernel_entry<K>);
  const current_device guard(l.device->ordinal);
  if (c.prepare) {
    // Loads the kernel: a load during a stream capture or beside a running kernel would synchronise.
    PORTILE_GPU_API(FuncAttributes) attributes;
    require_success(PORTILE_GPU_API(FuncGetAttributes)(&attributes, entry), "load a kernel");
    if (shared_bytes > default_shared_bytes)
      // All that there is: another problem's plan must not take it back.
      require_success(
          PORTILE_GPU_API(FuncSetAttribute)(entry, PORTILE_GPU_API(FuncAttributeMaxDynamicSharedMemorySize),
                                            l.device->max_shared),
          "shared memory of a kernel");
    return;
  }
  typename K::params copy = p;
  void* arguments[] = {&copy};
  require_success(
      PORTILE_GPU_API(LaunchKernel)(entry, dim3(static_cast<unsigned>(blocks)), dim3(K::threads), arguments,
                                    shared_bytes, static_cast<PORTILE_GPU_API(Stream_t)>(l.stream)),
      "launch");
#endif
}

/// Why a device cannot run what this plug-in was built for; empty when it can.
std::string arch_refusal(const portile_device_info& device);
/// The architectures this plug-in was built for, comma separated.
extern const char* const built_archs;

/// The entry "<platform>.simt" of an operation: `I::launch(const context&, const P&)` takes whatever the
/// contract takes.
template <class P, class I>
struct simt {
  static plugin::verdict supports(const portile_device_info& device, const P&) {
    std::string reason = arch_refusal(device);
    return reason.empty() ? plugin::accept() : plugin::refuse(std::move(reason));
  }
  // Asked for by a plan, so this is where the problem's kernels are loaded.
  static std::uint64_t workspace(const portile_device_info& device, const P& p) {
    portile_launch l{};
    l.device = &device;
    I::launch(context{l, true}, p);
    if constexpr (requires { I::workspace(device, p); }) return I::workspace(device, p);
    return 0;
  }
  static void launch(const portile_launch& l, const P& p) { I::launch(context{l, false}, p); }
};

// Not constexpr: hipcc would take a constant for one of the device's too, and look for the host's functions
// there.
template <class P, class I>
portile_implementation make_simt() {
  return plugin::make_implementation<P, simt<P, I>>(simt_name, platform_kind, PORTILE_GPU_ARCHS);
}

}  // namespace portile::gpu
