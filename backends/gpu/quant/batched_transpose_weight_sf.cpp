#include <portile/kernels/quant/batched_transpose_weight_sf.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// Packed exponents of one weight in one direction. In memory order [group, word, line]; a line is a row of
/// the weight (out_sf0) or a column (out_sf1).
struct packed_sf {
  const float* x_sf;
  numeric::ue8m0x4* out;
  std::int64_t first;                      ///< unit where it begins: four lines of one word
  std::int32_t lines, along;               ///< along: scales of a line
  std::int32_t line_stride, along_stride;  ///< of the scales
};

/// All weights of a list in one launch. Four lines share a scale, so a thread makes one word and stores it
/// four times.
struct transpose_sf {
  static constexpr int threads = 256, most = 72;
  struct params {
    packed_sf part[most];
    std::int64_t units;
    std::uint64_t* trap;
    int parts, block_shift;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t u = block.index() * threads + block.thread(); u < p.units;
         u += block.grid() * threads) {
      int i = 0;
      while (i + 1 < p.parts && p.part[i + 1].first <= u) ++i;
      const packed_sf& part = p.part[i];
      const std::int64_t unit = u - part.first;
      const std::int64_t quads = part.lines / 4, width = (part.along + 3) / 4;
      const std::int64_t gw = unit / quads, line = (unit - gw * quads) * 4;
      const std::int64_t group = gw / width, word = gw - group * width;
      const std::int64_t at =
          group * (part.lines >> p.block_shift) * part.along + (line >> p.block_shift) * part.line_stride;
      float sf[4];
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j)
        sf[j] = 4 * word + j < part.along ? part.x_sf[at + (4 * word + j) * part.along_stride] : 0.0f;
      std::uint32_t bits = 0;
      PORTILE_UNROLL
      for (int j = 0; j < 4; ++j) {
        bits |= std::uint32_t{numeric::exponent_field(sf[j])} << (8 * j);
        if (!numeric::is_power_of_two_scale(sf[j]))
          raise_trap(p.trap, 0, at + (4 * word + j) * part.along_stride);
      }
      numeric::ue8m0x4* to = part.out + gw * part.lines + line;
      if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        store16(to, {{bits, bits, bits, bits}});
      } else {
        PORTILE_UNROLL
        for (int j = 0; j < 4; ++j) to[j] = {bits};
      }
    }
  }
};

struct batched_transpose_weight_sf_simt {
  static void launch(const context& c, const quant::batched_transpose_weight_sf& p) {
    transpose_sf::params k{};
    k.trap = c.call.trap;
    for (std::int64_t b = p.block_size; b > 1; b /= 2) ++k.block_shift;
    for (std::int64_t i = 0; i < p.x_sf.size; ++i) {
      const tensor& t = p.x_sf[i];
      const std::int64_t n = t.extent(t.rank - 2), m = t.extent(t.rank - 1);
      if (t.numel() == 0) continue;
      if (n > limit || m > limit)
        throw error(status_code::unsupported,
                    "quant.batched_transpose_weight_sf: more than 2^22 scales a side");
      append(c, k, t, p.out_sf0[i], n * p.block_size, m, m, 1);
      append(c, k, t, p.out_sf1[i], m * p.block_size, n, 1, m);
    }
    start(c, k);
  }

 private:
  static constexpr std::int64_t limit = std::int64_t{1} << 22;
  static void append(const context& c, transpose_sf::params& k, const tensor& x_sf, const tensor& out,
                     std::int64_t lines, std::int64_t along, std::int64_t line_stride,
                     std::int64_t along_stride) {
    if (k.parts == transpose_sf::most) start(c, k);
    k.part[k.parts++] = {static_cast<const float*>(x_sf.data),
                         static_cast<numeric::ue8m0x4*>(out.data),
                         k.units,
                         static_cast<std::int32_t>(lines),
                         static_cast<std::int32_t>(along),
                         static_cast<std::int32_t>(line_stride),
                         static_cast<std::int32_t>(along_stride)};
    k.units += (x_sf.rank == 3 ? x_sf.extent(0) : 1) * numeric::ceil_div(along, 4) * (lines / 4);
  }
  static void start(const context& c, transpose_sf::params& k) {
    gpu::launch<transpose_sf>(c, numeric::ceil_div(k.units, transpose_sf::threads), 0, k);
    k.parts = 0;
    k.units = 0;
  }
};

}  // namespace

extern const portile_implementation quant_batched_transpose_weight_sf_simt;
const portile_implementation quant_batched_transpose_weight_sf_simt =
    make_simt<quant::batched_transpose_weight_sf, batched_transpose_weight_sf_simt>();

}  // namespace portile::gpu
