#pragma once

// exp and log1p from fp32 operations and fma only, so that every device computes the same bits. Compile with
// floating-point contraction off and without flush-to-zero. Every NaN result is the quiet NaN of bits.hpp.

#include "bits.hpp"

#include <math.h>

namespace portile::numeric {

namespace detail {
// ln 2 in two parts. A multiple n of the first with |n| < 2^9 is exact.
inline constexpr float ln2_high = 0x1.62e4p-1f;
inline constexpr float ln2_low = 0x1.7f7d1cp-20f;

// -126 <= n <= 127.
constexpr float power_of_two(int n) { return bits_float(static_cast<std::uint32_t>(n + 127) << 23); }
}  // namespace detail

// e^x. Largest error 0.765 ulp (in the subnormal results; 0.058 % of the results are not the correctly
// rounded one), measured against double precision over all 2^32 inputs. exp(-Inf) = 0, exp(Inf) = Inf;
// overflow gives Inf, underflow goes through the subnormals to 0.
template <class F = float>
constexpr F exp_f32(F x) {
  if (is_nan(x)) return quiet_nan();
  // Beyond these bounds the result no longer changes: Inf, and less than half of the smallest subnormal.
  if (x > 89.0f) x = 89.0f;
  if (x < -104.0f) x = -104.0f;

  // x = n ln2 + (r + r_low), |r| <= ln2 / 2. Adding 1.5 * 2^23 rounds to an integer; the first fma is exact.
  const F n = ::fmaf(x, 0x1.715476p+0f, 0x1.8p+23f) - 0x1.8p+23f;
  const F reduced = ::fmaf(n, -detail::ln2_high, x);
  const F r = ::fmaf(n, -detail::ln2_low, reduced);
  const F r_low = ::fmaf(n, -detail::ln2_low, reduced - r);

  // e^r = 1 + r + r^2 q(r), q fitted at Chebyshev points; 1 + r is kept as head + carry.
  F q = 0x1.a12516p-13f;
  q = ::fmaf(q, r, 0x1.6d434ep-10f);
  q = ::fmaf(q, r, 0x1.1110ep-7f);
  q = ::fmaf(q, r, 0x1.5554e8p-5f);
  q = ::fmaf(q, r, 0x1.555556p-3f);
  q = ::fmaf(q, r, 0.5f);
  const F head = 1.0f + r;
  const F carry = (1.0f - head) + r;
  const F power = head + ::fmaf(r * r, q, carry + r_low);

  // 2^n in two factors, because it may be subnormal or overflow. Only the last product rounds.
  const int exponent = static_cast<int>(n);
  const int half = exponent / 2;
  return power * detail::power_of_two(half) * detail::power_of_two(exponent - half);
}

// ln(1 + x). Largest error 0.764 ulp (0.029 % of the results are not the correctly rounded one), measured in
// the same way. log1p(+-0) = +-0, log1p(-1) = -Inf, log1p(Inf) = Inf, x < -1 gives NaN.
template <class F = float>
constexpr F log1p_f32(F x) {
  if (is_nan(x) || x < -1.0f) return quiet_nan();
  if (x == -1.0f) return -infinity();
  if (x == 0.0f || x > fp32_max) return x;

  // 1 + x = 2^k (1 + f), f about in [-0.293, 0.415]. k comes from the rounded 1 + x, and x is scaled on its
  // bits. f = x 2^-k + (2^-k - 1) is kept as f + f_low; both terms are exact but for k > 24, where 2^-k does
  // not matter.
  const F one_plus_x = 1.0f + x;
  const std::uint32_t shift = (float_bits(one_plus_x) - 0x3F350000u) & 0xFF800000u;
  const F k = static_cast<F>(static_cast<std::int32_t>(shift) / (1 << 23));
  const F scaled = shift == 0 ? x : bits_float(float_bits(x) - shift);
  const F offset = ::fmaf(0.25f, bits_float(0x40800000u - shift), -1.0f);
  const F f = scaled + offset;
  const F back = f - scaled;
  const F f_low = (scaled - (f - back)) + (offset - back);

  // ln(1 + f) = f - f^2/2 + f^3 q(f), q fitted at Chebyshev points. k ln2 + f - f^2/2 is kept as head + carry
  // + low.
  F q = 0x1.14f6e2p-4f;
  q = ::fmaf(q, f, -0x1.d945d4p-4f);
  q = ::fmaf(q, f, 0x1.e3e25p-4f);
  q = ::fmaf(q, f, -0x1.fcc70ap-4f);
  q = ::fmaf(q, f, 0x1.2379cep-3f);
  q = ::fmaf(q, f, -0x1.5559bep-3f);
  q = ::fmaf(q, f, 0x1.99a134p-3f);
  q = ::fmaf(q, f, -0x1.000008p-2f);
  q = ::fmaf(q, f, 0x1.55554ep-2f);
  const F k_ln2 = k * detail::ln2_high;
  const F sum = k_ln2 + f;
  const F square = f * f;
  const F head = sum - 0.5f * square;
  const F carry = ((k_ln2 - sum) + f) + ((sum - head) - 0.5f * square);
  const F low = ::fmaf(k, detail::ln2_low, f_low) - 0.5f * ::fmaf(f, f, -square);
  return head + ::fmaf(f * square, q, carry + low);
}

// 1 / (1 + e^-x), in this order.
template <class F = float>
constexpr F sigmoid_f32(F x) {
  if (is_nan(x)) return quiet_nan();
  return 1.0f / (1.0f + exp_f32(-x));
}

// sqrt(softplus(x)) with softplus(x) = x > 20 ? x : log1p(e^x). sqrt is correctly rounded.
template <class F = float>
constexpr F sqrt_softplus_f32(F x) {
  if (is_nan(x)) return quiet_nan();
  return ::sqrtf(x > 20.0f ? x : log1p_f32(exp_f32(x)));
}

}  // namespace portile::numeric
