#pragma once
// The instruction behind each atom. Using one on a part that does not have it is a compile error of hipcc
// ("needs target feature"). On the emulator all of them are there.
#include "backends/gpu/platform.hpp"
#include "backends/hip/mfma/atom.hpp"

#if defined(PORTILE_EMULATOR)
#include "tests/emulator/matrix.hpp"
#endif

namespace portile::hip {

/// The sums of a lane, one to a register.
template <class Atom>
struct accumulator;
#define PORTILE_ACCUMULATOR(count)                                   \
  using f32x##count = float __attribute__((vector_size(4 * count))); \
  template <class Atom>                                              \
  requires(Atom::results == count) struct accumulator<Atom> { using type = f32x##count; };
PORTILE_ACCUMULATOR(4)
PORTILE_ACCUMULATOR(16)
#undef PORTILE_ACCUMULATOR

#if defined(PORTILE_EMULATOR)

/// Ends a kernel on a device that it was not made for: never without a word.
[[noreturn]] inline void stop() { emulator::fail("a matrix instruction that this device does not have"); }

/// sum += a * b; all lanes of the wave take part.
template <class Atom>
void multiply_add(Atom, typename accumulator<Atom>::type& sum, const std::uint32_t (&a)[Atom::words],
                  const std::uint32_t (&b)[Atom::words], emulator::site where = emulator::site::current()) {
  emulator::multiply_add<Atom>(sum, a, b, where);
}

#else

PORTILE_DEVICE void stop() { __builtin_trap(); }

namespace detail {
using short4 = short __attribute__((ext_vector_type(4)));
using bf16x8 = __bf16 __attribute__((ext_vector_type(8)));
using float2 = float __attribute__((ext_vector_type(2)));
template <class T>
struct words_of {
  std::uint32_t w[sizeof(T) / 4];
};
template <class T>
PORTILE_DEVICE T bits(const std::uint32_t (&w)[sizeof(T) / 4]) {
  words_of<T> all;
  for (unsigned i = 0; i < sizeof(T) / 4; ++i) all.w[i] = w[i];
  return __builtin_bit_cast(T, all);
}
}  // namespace detail

#define PORTILE_MFMA(name, vector, builtin)                                        \
  PORTILE_DEVICE void multiply_add(name, typename accumulator<name>::type& sum,    \
                                   const std::uint32_t(&a)[name::words],           \
                                   const std::uint32_t(&b)[name::words]) {         \
    sum = builtin(detail::bits<vector>(a), detail::bits<vector>(b), sum, 0, 0, 0); \
  }
PORTILE_MFMA(bf16_32x32x8, detail::short4, __builtin_amdgcn_mfma_f32_32x32x8bf16_1k)
PORTILE_MFMA(bf16_16x16x16, detail::short4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
PORTILE_MFMA(bf16_32x32x16, detail::bf16x8, __builtin_amdgcn_mfma_f32_32x32x16_bf16)
PORTILE_MFMA(bf16_16x16x32, detail::bf16x8, __builtin_amdgcn_mfma_f32_16x16x32_bf16)
PORTILE_MFMA(f32_32x32x2, float, __builtin_amdgcn_mfma_f32_32x32x2f32)
PORTILE_MFMA(f32_16x16x4, float, __builtin_amdgcn_mfma_f32_16x16x4f32)
PORTILE_MFMA(xf32_32x32x4, detail::float2, __builtin_amdgcn_mfma_f32_32x32x4_xf32)
PORTILE_MFMA(xf32_16x16x8, detail::float2, __builtin_amdgcn_mfma_f32_16x16x8_xf32)
PORTILE_MFMA(fnuz_32x32x16, long, __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8)
PORTILE_MFMA(fnuz_16x16x32, long, __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8)
PORTILE_MFMA(e4m3_32x32x16, long, __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8)
PORTILE_MFMA(e4m3_16x16x32, long, __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8)
#undef PORTILE_MFMA

#endif

}  // namespace portile::hip
