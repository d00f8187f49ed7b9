#include <portile/kernels/quant/batched_transpose_weight_sf.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// Packed exponents of one weight in one direction. In memory order [group, word, line]; a line is a row of
/// the weight (out_sf0) or a column (out_sf1), and the lines of a block have the same words.
struct packed_sf {
  const float* x_sf;
  numeric::ue8m0x4* out;
  std::int64_t first, words;               ///< different words, counted over the whole list
  std::int32_t along;                      ///< scales of a line
  std::int32_t line_stride, along_stride;  ///< of the scales
  divider blocks, width;                   ///< blocks of lines, words of a line
};

/// All weights of a list in one launch. A lane makes one word; then the wave stores each lane's word as often
/// as it is there, 16 bytes a lane without gaps.
struct transpose_sf {
  static constexpr int threads = 64, most = 36;
  static constexpr std::int64_t wave_words = 64;  ///< parts begin at multiples: waves do not span them
  struct params {
    packed_sf part[most];
    std::int64_t words;
    std::uint64_t* trap;
    int parts, block_shift;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const int quad_shift = p.block_shift - 2;
    for (std::int64_t base = block.index() * threads; base < p.words; base += block.grid() * threads) {
      const std::int64_t at = base + block.thread();
      int i = 0;
      while (i + 1 < p.parts && p.part[i + 1].first <= at) ++i;
      const packed_sf& part = p.part[i];
      const std::int64_t word = at - part.first, left = part.words - (word - block.lane());
      const std::uint32_t bits = word < part.words ? make(part, word, p.trap) : 0u;
      numeric::ue8m0x4* const out = part.out + ((word - block.lane()) << p.block_shift);
      const bool aligned = reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
      PORTILE_NO_UNROLL
      for (int k = 0; k < 1 << quad_shift; ++k) {
        const int quad = k * Block::wave_size + block.lane(), source = quad >> quad_shift;
        const std::uint32_t w = block.shuffle(bits, source);
        if (source >= left) continue;
        if (aligned) {
          store16(out + 4 * quad, {{w, w, w, w}});
        } else {
          PORTILE_UNROLL
          for (int j = 0; j < 4; ++j) out[4 * quad + j] = {w};
        }
      }
    }
  }

 private:
  static PORTILE_DEVICE std::uint32_t make(const packed_sf& part, std::int64_t index, std::uint64_t* trap) {
    const std::int64_t gw = part.blocks.quotient(index), line = index - gw * part.blocks.value();
    const std::int64_t group = part.width.quotient(gw), word = gw - group * part.width.value();
    const std::int64_t at = group * part.blocks.value() * part.along + line * part.line_stride;
    float sf[4];
    PORTILE_UNROLL
    for (int j = 0; j < 4; ++j)
      sf[j] = 4 * word + j < part.along ? part.x_sf[at + (4 * word + j) * part.along_stride] : 0.0f;
    std::uint32_t bits = 0;
    PORTILE_UNROLL
    for (int j = 0; j < 4; ++j) {
      bits |= std::uint32_t{numeric::exponent_field(sf[j])} << (8 * j);
      if (!numeric::is_power_of_two_scale(sf[j]))
        raise_trap(trap, 0, at + (4 * word + j) * part.along_stride);
    }
    return bits;
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
      append(c, k, t, p.out_sf0[i], n, m, m, 1);
      append(c, k, t, p.out_sf1[i], m, n, 1, m);
    }
    start(c, k);
  }

 private:
  static constexpr std::int64_t limit = std::int64_t{1} << 22;
  static void append(const context& c, transpose_sf::params& k, const tensor& x_sf, const tensor& out,
                     std::int64_t blocks, std::int64_t along, std::int64_t line_stride,
                     std::int64_t along_stride) {
    if (k.parts == transpose_sf::most) start(c, k);
    const std::int64_t width = numeric::ceil_div(along, 4);
    const std::int64_t words = (x_sf.rank == 3 ? x_sf.extent(0) : 1) * width * blocks;
    k.part[k.parts++] = {static_cast<const float*>(x_sf.data),
                         static_cast<numeric::ue8m0x4*>(out.data),
                         k.words,
                         words,
                         static_cast<std::int32_t>(along),
                         static_cast<std::int32_t>(line_stride),
                         static_cast<std::int32_t>(along_stride),
                         divider(blocks, words),
                         divider(width, words)};
    k.words += numeric::ceil_div(words, transpose_sf::wave_words) * transpose_sf::wave_words;
  }
  static void start(const context& c, transpose_sf::params& k) {
    static_assert(sizeof k <= 4000);
    gpu::launch<transpose_sf>(c, numeric::ceil_div(k.words, transpose_sf::threads), 0, k);
    k.parts = 0;
    k.words = 0;
  }
};

}  // namespace

extern const portile_implementation quant_batched_transpose_weight_sf_simt;
const portile_implementation quant_batched_transpose_weight_sf_simt =
    make_simt<quant::batched_transpose_weight_sf, batched_transpose_weight_sf_simt>();

}  // namespace portile::gpu
