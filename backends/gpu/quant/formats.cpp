#include <portile/kernels/quant/formats.hpp>

#include "backends/gpu/quant/chunk.hpp"

namespace portile::gpu {
namespace {

/// Eight values a thread: what E5M6 packs together.
template <class Code>
struct format {
  static constexpr int threads = 256, values = 8;
  static constexpr bool bytes = std::is_same_v<Code, std::uint8_t>;  ///< ue8m0, or e2m1 before it is packed
  struct params {
    float* floats;
    Code* codes;
    std::int64_t count;
    std::uint64_t* trap;
    bool encodes, e2m1;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t first = (block.index() * threads + block.thread()) * values; first < p.count;
         first += block.grid() * threads * values) {
      const std::int64_t end = first + values < p.count ? first + values : p.count;
      if constexpr (std::is_same_v<Code, numeric::e5m6x8>) {
        p.encodes ? store_e5m6(p.codes, first, false, p.floats + first)
                  : load_e5m6(p.codes, first, false, p.floats + first);
      } else if constexpr (std::is_same_v<Code, numeric::e2m1x2>) {
        for (std::int64_t k = first; k < end; k += 2) {
          if (p.encodes) {
            const std::uint32_t pair = to_e2m1_code(p.floats[k]) | to_e2m1_code(p.floats[k + 1]) << 4;
            p.codes[k / 2] = {static_cast<std::uint8_t>(pair)};
          } else {
            p.floats[k] = load_value(p.codes, k);
            p.floats[k + 1] = load_value(p.codes, k + 1);
          }
        }
      } else {
        for (std::int64_t k = first; k < end; ++k) p.encodes ? encode(p, k) : decode(p, k);
      }
    }
  }

 private:
  static PORTILE_DEVICE void encode(const params& p, std::int64_t k) {
    const float v = p.floats[k];
    if constexpr (std::is_same_v<Code, numeric::e4m3>) {
      p.codes[k] = numeric::to_e4m3(v);
    } else if constexpr (std::is_same_v<Code, numeric::bf16>) {
      store_value(p.codes, k, v);
    } else if constexpr (bytes) {
      if (p.e2m1) {
        p.codes[k] = static_cast<std::uint8_t>(to_e2m1_code(v));
        return;
      }
      const std::uint8_t e = numeric::power_of_two_exponent_ceil(v);
      if (numeric::ue8m0_to_float(e) != v) raise_trap(p.trap, 0, k);
      p.codes[k] = e;
    }
  }
  static PORTILE_DEVICE void decode(const params& p, std::int64_t k) {
    if constexpr (bytes)
      p.floats[k] = numeric::ue8m0_to_float(p.codes[k]);
    else
      p.floats[k] = load_value(p.codes, k);
  }
};

struct formats_simt {
  static void launch(const context& c, const quant::formats& p) {
    const bool encodes = p.direction == "encode";
    const tensor &codes = encodes ? p.out : p.x, &values = encodes ? p.x : p.out;
    visit<numeric::e4m3, numeric::e2m1x2, numeric::e5m6x8, numeric::bf16, std::uint8_t>(
        codes.dtype, [&](auto code) {
          using kernel = format<decltype(code)>;
          const std::int64_t count = values.numel();
          gpu::launch<kernel>(c, numeric::ceil_div(count, kernel::threads * kernel::values), 0,
                              {static_cast<float*>(values.data), static_cast<decltype(code)*>(codes.data),
                               count, c.call.trap, encodes, p.fmt == "e2m1"});
        });
  }
};

}  // namespace

extern const portile_implementation quant_formats_simt;
const portile_implementation quant_formats_simt = make_simt<quant::formats, formats_simt>();

}  // namespace portile::gpu
