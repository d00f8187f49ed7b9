// The short forms that kernels compute with have the bits of the long ones, or stay within their bounds.
#include "backends/gpu/moe/gate.hpp"
#include "backends/gpu/quant/near_rows.hpp"
#include "backends/gpu/quant/swiglu.hpp"
#include "backends/gpu/quant/swiglu_estimates.hpp"

#include "support/catch.hpp"

using namespace portile;
using numeric::bits_float;
using numeric::float_bits;

namespace {

/// Every bf16 and every 1009th float. A step of 1 took in all floats once, with no difference.
template <class F>
void for_dense_floats(F f) {
  constexpr std::uint64_t step = 1009;
  for (std::uint64_t u = 0; u < (std::uint64_t{1} << 32); u += step)
    f(bits_float(static_cast<std::uint32_t>(u)));
  for (std::uint32_t u = 0; u < 65536; ++u) f(bits_float(u << 16));
}

}  // namespace

TEST_CASE("swiglu_near: the bits of 1 / t and l / t") {
  int differences = 0;
  for_dense_floats([&](float l) {
    if (!(std::fabs(l) <= gpu::near_left)) return;
    const float t = 1.0f + numeric::exp_f32(-l);
    const gpu::swiglu_near near(l);
    differences +=
        float_bits(near.sigmoid) != float_bits(1.0f / t) || float_bits(near.silu) != float_bits(l / t);
  });
  CHECK(differences == 0);
}

TEST_CASE("silu_estimate: within the bounds on either side") {
  struct {
    gpu::swiglu_bounds bounds;
    int products;  ///< room for two products on both sides and the bound's own; e4m3: and for the scale
  } const rows[] = {{gpu::swiglu_to_e4m3, 9}, {gpu::swiglu_to_bf16, 5}};
  for (const auto& [b, products] : rows) {
    const double share = b.error - products * 0x1p-24;
    int beyond = 0;
    for_dense_floats([&](float l) {
      if (!(std::fabs(l) <= b.left) || std::fabs(l) < 0x1p-96f) return;
      const double value = l / (1.0f + numeric::exp_f32(-l)), estimate = gpu::silu_estimate(l);
      beyond += !(std::fabs(estimate - value) <= share * std::fabs(value));
    });
    CHECK(beyond == 0);
  }
}

TEST_CASE("e4m3_scale: the bits of numeric::scale_power_of_two") {
  int differences = 0;
  for_dense_floats([&](float amax) {
    if (!(amax >= 0)) return;
    const numeric::scale s = gpu::e4m3_scale(amax, 1e-4f, true),
                         expected = numeric::scale_power_of_two(amax, 1e-4f, numeric::max_e4m3);
    differences += s.sf != expected.sf || s.sf_inv != expected.sf_inv || s.exponent != expected.exponent;
  });
  CHECK(differences == 0);
}

TEST_CASE("score_estimate: within its bound on either side") {
  int beyond = 0;
  for_dense_floats([&](float x) {
    if (!(std::fabs(x) <= gpu::estimated_logits)) return;
    const double value = numeric::sqrt_softplus_f32(x);
    beyond += !(std::fabs(gpu::score_estimate(x) - value) <= (gpu::score_error - 0x1p-20) * value);
  });
  CHECK(beyond == 0);
}
