// Compile-only: calls every function of core/numeric in device code. Built with the options that all device
// code gets
// (-std=c++20 --expt-relaxed-constexpr --fmad=false); nothing runs.

#include <portile/core/numeric/bf16.hpp>
#include <portile/core/numeric/bits.hpp>
#include <portile/core/numeric/e2m1.hpp>
#include <portile/core/numeric/e4m3.hpp>
#include <portile/core/numeric/e4m3fnuz.hpp>
#include <portile/core/numeric/e5m2.hpp>
#include <portile/core/numeric/e5m6.hpp>
#include <portile/core/numeric/elementary.hpp>
#include <portile/core/numeric/f16.hpp>
#include <portile/core/numeric/integer.hpp>
#include <portile/core/numeric/philox.hpp>
#include <portile/core/numeric/rank_key.hpp>
#include <portile/core/numeric/scale.hpp>
#include <portile/core/numeric/stochastic.hpp>
#include <portile/core/numeric/tf32.hpp>
#include <portile/core/numeric/types.hpp>
#include <portile/core/numeric/ue8m0.hpp>

namespace n = portile::numeric;

__global__ void formats(const float* x, float* out, unsigned* words, unsigned char* bytes) {
  const float v = x[threadIdx.x];
  const auto byte = static_cast<std::uint8_t>(words[0]);
  out[0] = n::to_float(n::to_bf16(v)) + n::to_float(n::to_f16(v)) + n::to_float(n::to_f16_rtz(v));
  out[1] = n::to_float(n::to_e4m3(v)) + n::to_float(n::to_e4m3fnuz(v)) + n::to_float(n::to_e5m2(v));
  out[2] = n::e2m1_to_float(n::to_e2m1(v)) + n::e5m6_to_float(n::to_e5m6(v)) +
           n::e5m6_to_float(n::to_e5m6_nearest(v));
  out[3] = n::ue8m0_to_float(byte) + n::ue8m0_to_float_ocp(byte);
  out[4] = n::to_tf32_nearest(v) + n::to_tf32_truncate(v);

  n::e2m1x2 pair = n::pack_e2m1x2(byte, n::to_e2m1x2(v, v).low());
  words[1] = n::unpack_e2m1x2(pair, 0) + n::unpack_e2m1x2(pair, 1) + (pair == n::to_e2m1x2(v, v) ? 1u : 0u);
  n::ue8m0x4 four = n::pack_ue8m0x4(byte, byte, n::exponent_field(v), n::power_of_two_exponent_ceil(v));
  four.set_byte(2, four.byte(1));
  words[2] = four.bits + (n::is_power_of_two_scale(v) ? 1u : 0u);

  std::uint16_t codes[8];
  n::unpack_e5m6x8(bytes, codes);
  n::pack_e5m6x8(codes, bytes + 12);
}

__global__ void rules(const float* x, float* out, unsigned* words, long long* integers) {
  __shared__ n::bf16 tile[32];  // the storage types need no constructor
  const float v = x[threadIdx.x];
  tile[threadIdx.x % 32] = n::to_bf16(v);

  const float amax = n::amax_step(x[1], v);
  const n::scale a = n::scale_plain(amax, n::clamp_e4m3, n::max_e4m3);
  const n::scale b = n::scale_power_of_two(amax, n::clamp_e2m1, n::max_e2m1);
  const n::scale c = n::scale_e4m3(amax, n::clamp_e2m1_with_e4m3_sf, n::max_e2m1);
  const n::scale d = n::scale_plain(amax, n::clamp_e5m6, n::max_e5m6);
  const n::scale e = n::scale_e4m3(amax, n::clamp_e4m3_with_e4m3_sf, n::max_e4m3fnuz + n::max_e5m2);
  out[0] = a.sf + a.sf_inv + b.sf + b.sf_inv + c.sf + c.sf_inv + d.sf + e.sf + static_cast<float>(b.exponent);
  out[1] = n::exp_f32(v) + n::log1p_f32(v) + n::sigmoid_f32(v) + n::sqrt_softplus_f32(v);
  out[2] = n::abs_f32(v) + (n::is_nan(v) ? n::quiet_nan() : n::infinity()) +
           (n::is_finite(v) ? n::fp32_max : 0.0f);

  const n::sr_words r = n::sr_hash(n::float_bits(v), words[1], words[2], words[3], threadIdx.x);
  words[4] = n::stochastic_bf16(v, n::sr_slice_bf16(r, 3)).bits +
             n::stochastic_e4m3(v, n::sr_slice_e4m3(r.r0, 1)).bits +
             n::stochastic_e2m1(v, n::sr_slice_e2m1(r.r1, 2)) + n::bit_reverse16(tile[threadIdx.x % 32].bits);
  const n::philox_words p =
      n::philox4x32_10(n::philox_words{{1, 2, 3, words[5]}}, n::philox_key{{words[6], 7}});
  const n::philox_words q = n::philox4x32_10(p.w[0], p.w[1], p.w[2]);
  out[3] = n::uniform_f32(q.w[3]);
  words[7] = n::rank_key(v) + n::seed_mix(words[8]);

  integers[0] = n::floor_mod(integers[1], static_cast<std::int32_t>(words[9] | 1u)) +
                n::ceil_div(integers[2], 7) + n::align_up(integers[3], 128);
}
