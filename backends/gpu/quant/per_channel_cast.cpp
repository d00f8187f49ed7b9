#include <portile/kernels/quant/per_channel_cast.hpp>
#include <portile/kernels/quant/per_channel_cast_and_transpose.hpp>
#include <portile/kernels/quant/per_channel_cast_fused.hpp>
#include <portile/kernels/quant/swiglu_forward_and_per_channel_cast_and_transpose.hpp>

#include "backends/gpu/quant/run.hpp"
#include "backends/gpu/quant/swiglu_estimates.hpp"
#include "backends/gpu/quant/tile.hpp"
#include "backends/gpu/rows.hpp"

namespace portile::gpu {
namespace {

/// What a thread holds of the tile: eight neighbouring columns of four consecutive rows, 16 lanes a row. The
/// four codes of a column are then a word of the transposed tile.
struct share {
  static constexpr int cols = 8, rows = 4, lanes = tile::size / cols;
};

/// Eight codes of a row with their scale.
struct scaled_codes {
  words2 codes;
  std::uint32_t sf_word;
  float sf;
};

/// Values 2 * k and 2 * k + 1 of a thread's eight as fp32.
template <class T>
PORTILE_DEVICE void widen(const raw8<T>& x, int k, float& first, float& second) {
  first = x[2 * k];
  second = x[2 * k + 1];
}
PORTILE_DEVICE void widen(const scaled_codes& x, int k, float& first, float& second) {
  from_e4m3x2(static_cast<std::uint16_t>(x.codes.w[k / 2] >> (16 * (k % 2))), first, second);
  first *= x.sf;
  second *= x.sf;
}

/// amax of each column over a thread's rows.
template <class Piece>
PORTILE_DEVICE void column_amax(const Piece (&x)[share::rows], float (&a)[share::cols]) {
  PORTILE_UNROLL
  for (int k = 0; k < share::cols / 2; ++k) {
    a[2 * k] = a[2 * k + 1] = 0.0f;
    PORTILE_UNROLL
    for (int r = 0; r < share::rows; ++r) {
      float first, second;
      widen(x[r], k, first, second);
      a[2 * k] = amax_step(a[2 * k], first);
      a[2 * k + 1] = amax_step(a[2 * k + 1], second);
    }
  }
}
PORTILE_DEVICE void column_amax(const raw8<numeric::bf16> (&x)[share::rows], float (&a)[share::cols]) {
  PORTILE_UNROLL
  for (int k = 0; k < share::cols / 2; ++k) {
    std::uint32_t most = 0;
    PORTILE_UNROLL
    for (int r = 0; r < share::rows; ++r) most = amax_bf16x2(most, x[r].v[0].w[k]);
    a[2 * k] = bf16_low(most);
    a[2 * k + 1] = bf16_high(most);
  }
}

/// The same in packed fp16, where the scales of a thread's rows are powers of two that lie near each other:
/// the values are fp16 times the largest scale.
struct packed_codes {
  float unit = 0.0f;  ///< the largest scale; 0: the rows are not such ones

  packed_codes() = default;
  explicit PORTILE_DEVICE packed_codes(const scaled_codes (&x)[share::rows]) {
    std::uint32_t mantissas = 0, least = ~0u, most = 0;
    PORTILE_UNROLL
    for (int r = 0; r < share::rows; ++r) {
      const std::uint32_t bits = numeric::float_bits(x[r].sf);
      mantissas |= bits;
      least = bits < least ? bits : least;
      most = bits > most ? bits : most;
    }
    constexpr std::uint32_t one = 1u << 23;  // of an exponent
    if ((mantissas & (one - 1)) == 0 && least >= one && most - least <= 14 * one && most < 200 * one)
      unit = numeric::bits_float(most);
  }
  /// Values 2 * k and 2 * k + 1 of a row in fp16.
  PORTILE_DEVICE std::uint32_t pair(const scaled_codes& x, int k) const {
    const float power = x.sf * numeric::bits_float((254u << 23) - numeric::float_bits(unit));
    return mul_f16x2(e4m3x2_to_f16x2(static_cast<std::uint16_t>(x.codes.w[k / 2] >> (16 * (k % 2)))),
                     power_f16x2(power));
  }
  PORTILE_DEVICE void amax(const scaled_codes (&x)[share::rows], float (&a)[share::cols]) const {
    PORTILE_UNROLL
    for (int k = 0; k < share::cols / 2; ++k) {
      std::uint32_t most = 0;
      PORTILE_UNROLL
      for (int r = 0; r < share::rows; ++r) most = amax_f16x2(most, pair(x[r], k));
      from_f16x2(most, a[2 * k], a[2 * k + 1]);
      a[2 * k] *= unit;
      a[2 * k + 1] *= unit;
    }
  }
  /// Codes of a row's values times the factors of the columns, which are multiples of the unit already.
  PORTILE_DEVICE words2 encode(const scaled_codes& x, const float (&factor)[share::cols]) const {
    float v[share::cols];
    PORTILE_UNROLL
    for (int k = 0; k < share::cols / 2; ++k) {
      from_f16x2(pair(x, k), v[2 * k], v[2 * k + 1]);
      v[2 * k] *= factor[2 * k];
      v[2 * k + 1] *= factor[2 * k + 1];
    }
    return {{to_e4m3x4(v[0], v[1], v[2], v[3]), to_e4m3x4(v[4], v[5], v[6], v[7])}};
  }
  /// Powers of two up to 2^15 as factors: fp16 has the products with all that do not round to zero.
  PORTILE_DEVICE words2 encode(const scaled_codes& x, const std::uint32_t (&power)[share::cols / 2]) const {
    std::uint16_t two[share::cols / 2];
    PORTILE_UNROLL
    for (int k = 0; k < share::cols / 2; ++k) two[k] = f16x2_to_e4m3x2(mul_f16x2(pair(x, k), power[k]));
    return {{std::uint32_t{two[0]} | std::uint32_t{two[1]} << 16,
             std::uint32_t{two[2]} | std::uint32_t{two[3]} << 16}};
  }
  /// Whether the factors of the columns times the unit are at most this.
  PORTILE_DEVICE bool takes(const float* sf_inv, float most) const {
    float factor[share::cols], largest = 0.0f;
    load_values<float, share::cols>(sf_inv, 0, factor);
    PORTILE_UNROLL
    for (int k = 0; k < share::cols; ++k) largest = max_number(factor[k], largest);
    return unit != 0.0f && largest * unit <= most;
  }
};
PORTILE_DEVICE void column_amax(const scaled_codes (&x)[share::rows], float (&a)[share::cols]) {
  const packed_codes packed(x);
  if (packed.unit != 0.0f)
    packed.amax(x, a);
  else
    column_amax<scaled_codes>(x, a);
}

/// Rows of x as they are, or gathered; codes with their scales. load() asks for aligned rows.
template <class In>
struct rows_source {
  static constexpr bool codes = sizeof(In) == 1;
  using piece = std::conditional_t<codes, scaled_codes, raw8<std::conditional_t<codes, float, In>>>;
  static constexpr int min_blocks = sizeof(In) == 4 ? 2 : 3;

  const In* x;
  std::int64_t stride, tokens;
  const std::int32_t* pos;  ///< row of x for each row; absent: the same
  word_scales x_sf;
  int group_shift;  ///< log2 of the channels of a scale
  std::uint64_t* trap;

  /// `x_rows` is zero before, and stays so for rows that are not there.
  PORTILE_DEVICE void load(std::int64_t row, std::int64_t col, piece (&x_rows)[share::rows]) const {
    if constexpr (codes) {
      // What is not there gets the scale 1.
      PORTILE_UNROLL
      for (int r = 0; r < share::rows; ++r)
        x_rows[r].sf_word = x_sf.pack_shift == 0 ? numeric::float_bits(1.0f) : 0x7F7F7F7Fu;
    }
    if (!pos) {
      PORTILE_UNROLL
      for (int r = 0; r < share::rows; ++r) load_row(row + r, col, x_rows[r]);
    } else {
      gather(row, col, x_rows);
    }
    if constexpr (codes) {
      PORTILE_UNROLL
      for (int r = 0; r < share::rows; ++r) x_rows[r].sf = x_sf.value(x_rows[r].sf_word, col >> group_shift);
    }
  }
  PORTILE_DEVICE float value(std::int64_t row, std::int64_t col) const {
    if (pos && col == 0) report(row);
    const std::int64_t t = pos ? pos[row] : row, g = col >> group_shift;
    if (t < 0 || t >= tokens) return 0.0f;
    const float v = load_value(x + t * stride, col);
    if constexpr (codes) return v * x_sf.value(x_sf.word(t, g), g);
    return v;
  }

 private:
  PORTILE_DEVICE void gather(std::int64_t row, std::int64_t col, piece (&x_rows)[share::rows]) const {
    std::int32_t t[share::rows];
    PORTILE_UNROLL
    for (int r = 0; r < share::rows; ++r) t[r] = pos[row + r];
    PORTILE_UNROLL
    for (int r = 0; r < share::rows; ++r)
      if (t[r] >= 0 && t[r] < tokens) load_row(t[r], col, x_rows[r]);
    if (col == 0) {
      PORTILE_NO_UNROLL
      for (int r = 0; r < share::rows; ++r) report(row + r);
    }
  }
  PORTILE_DEVICE void report(std::int64_t row) const {
    if (pos[row] >= tokens) raise_trap(trap, 0, row);
  }
  PORTILE_DEVICE void load_row(std::int64_t t, std::int64_t col, piece& v) const {
    const In* p = x + t * stride + col;
    if constexpr (codes) {
      v.codes = load8(p);
      v.sf_word = x_sf.word(t, col >> group_shift);
    } else {
      v = piece::template load<true>(p);
    }
  }
};

/// Activations of x = [left | right], rounded to bf16. load() asks for aligned rows.
template <class In>
struct swiglu_source {
  using piece = raw8<numeric::bf16>;
  static constexpr int min_blocks = 2;

  const In* x;
  std::int64_t stride, hidden;
  swiglu_clamp clamp;
  swiglu_limits limits;

  PORTILE_DEVICE void load(std::int64_t row, std::int64_t col, piece (&x_rows)[share::rows]) const {
    if constexpr (std::is_same_v<In, numeric::bf16>) {
      estimate(row, col, x_rows);
    } else {
      PORTILE_UNROLL
      for (int r = 0; r < share::rows; ++r) {
        const In* p = x + (row + r) * stride + col;
        const auto left = raw8<In>::template load<true>(p), right = raw8<In>::template load<true>(p + hidden);
        PORTILE_UNROLL
        for (int k = 0; k < 4; ++k)
          x_rows[r].v[0].w[k] = to_bf16x2(clamp.activation(left[2 * k], right[2 * k]),
                                          clamp.activation(left[2 * k + 1], right[2 * k + 1]));
      }
    }
  }
  PORTILE_DEVICE float value(std::int64_t row, std::int64_t col) const {
    const In* p = x + row * stride;
    return bf16_low(
        to_bf16x2(exact_activation(clamp, load_value(p, col), load_value(p, hidden + col)), 0.0f));
  }

 private:
  PORTILE_DEVICE void estimate(std::int64_t row, std::int64_t col, piece (&x_rows)[share::rows]) const {
    const In* p = x + row * stride + col;
    words4 left[share::rows], right[share::rows];
    PORTILE_UNROLL
    for (int r = 0; r < share::rows; ++r) {
      left[r] = load16(p + r * stride);
      right[r] = load16(p + r * stride + hidden);
    }
    std::uint32_t unsure = 0;
    PORTILE_UNROLL
    for (int r = 0; r < share::rows; ++r) {
      const swiglu_eight e(left[r].w, right[r].w, 1.0f, limits);
      PORTILE_UNROLL
      for (int k = 0; k < 4; ++k) x_rows[r].v[0].w[k] = e.out[k];
      unsure |= e.unsure << (share::cols * r);
    }
    // One value in a thousand or so: from memory again.
    PORTILE_NO_UNROLL
    while (unsure != 0) {
      const int i = first_lane(unsure);
      unsure &= unsure - 1;
      // Its high half is the bf16.
      const std::uint32_t bits = numeric::float_bits(value(row + i / share::cols, col + i % share::cols));
      PORTILE_UNROLL
      for (int w = 0; w < share::rows * share::cols / 2; ++w) {
        std::uint32_t& pair = x_rows[2 * w / share::cols].v[0].w[w % (share::cols / 2)];
        if (i / 2 == w)
          pair = i % 2 == 0 ? byte_permute(pair, bits, 0x3276u) : byte_permute(pair, bits, 0x7610u);
      }
    }
  }
};

/// What both kernels below take.
template <class Source>
struct channel_params {
  Source source;
  numeric::e4m3* out;
  std::int64_t out_stride, rows, cols;
  void* out_sf;
  std::int64_t sf_stride;
  int row_shift;  ///< log2 of the rows of a scale
  float clamp;    ///< lower bound of amax
  bool round, packed, transposed;

  PORTILE_DEVICE numeric::scale scale_of(float amax) const {
    const quant::scale_flags flags{.round = round};
    return make_scale(amax, clamp, numeric::max_e4m3, flags);
  }
  /// The scale of block i of column j.
  PORTILE_DEVICE void store_scale(std::int64_t i, std::int64_t j, const numeric::scale& s) const {
    if (!packed) {
      static_cast<float*>(out_sf)[i * sf_stride + j] = s.sf;
      return;
    }
    auto* bytes =
        reinterpret_cast<std::uint8_t*>(static_cast<numeric::ue8m0x4*>(out_sf) + i / 4 * sf_stride + j);
    bytes[i % 4] = s.exponent;
    if (((i + 1) << row_shift) >= rows)
      for (std::int64_t k = i % 4 + 1; k < 4; ++k) bytes[k] = 0;
  }
};

/// A tile of 128 x 128 values a thread block: amax of each column over 32 or 128 rows, then the codes, stored
/// as they lie or transposed through shared memory. All rows are aligned.
template <class Source>
struct channel_cast {
  static constexpr int threads = tile::threads, size = tile::size;
  static constexpr int min_blocks = Source::min_blocks;
  using piece = typename Source::piece;
  struct params : channel_params<Source> {
    tile_grid tiles;
  };
  // 1 / scale of at most four blocks of each column; behind it amax of each column over each wave's rows,
  // which the codes of a transposed tile replace.
  static constexpr int max_waves = threads / 32;
  static constexpr std::size_t sf_bytes = 4 * size * sizeof(float);
  static constexpr std::size_t shared_bytes(bool transposed) {
    return sf_bytes + (transposed ? size * size : max_waves * size * sizeof(float));
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    constexpr unsigned wave_rows = Block::wave_size / share::lanes * share::rows;
    auto* sf_inv = block.template shared<float>();
    auto* wave_amax = block.template shared<float>(sf_bytes);
    const auto thread = static_cast<unsigned>(block.thread());
    const unsigned chunk = thread % share::lanes, col = chunk * share::cols;
    const unsigned four = thread / share::lanes, row = four * share::rows;
    const unsigned blocks = size >> p.row_shift;
    for (std::int64_t index = block.index(); index < p.tiles.count; index += block.grid()) {
      const tile_at at = p.tiles.at(index);
      // The number of rows is a multiple of 16, that of columns one of 64.
      const bool live = at.holds(p.tiles, row, col);
      piece x[share::rows] = {};
      if (live) p.source.load(at.row + row, at.col + col, x);

      float a[share::cols];
      column_amax(x, a);
      PORTILE_UNROLL
      for (int m = share::lanes; m < Block::wave_size; m *= 2) {
        PORTILE_UNROLL
        for (int k = 0; k < share::cols; ++k) a[k] = max_number(a[k], block.shuffle_xor(a[k], m));
      }
      if (block.lane() < share::lanes)
        store_values<float, share::cols>(wave_amax, block.wave() * size + col, a);
      block.barrier();
      if (thread < blocks * size) {
        const unsigned b = thread / size, c = thread % size, waves = Block::num_waves / blocks;
        const float* at_column = wave_amax + b * waves * size + c;
        float amax = 0.0f;
        PORTILE_UNROLL
        for (unsigned w = 0; w < size / wave_rows; ++w)
          if (w < waves) amax = max_number(amax, at_column[w * size]);
        const numeric::scale s = p.scale_of(amax);
        sf_inv[thread] = s.sf_inv;
        if (at.holds(p.tiles, b << p.row_shift, c)) p.store_scale((at.row >> p.row_shift) + b, at.col + c, s);
      }
      block.barrier();

      const float* factors = sf_inv + (row >> p.row_shift) * size + col;
      auto* codes = block.template shared<unsigned char>(sf_bytes);
      if (p.transposed) {
        encode_columns(x, factors, codes, four, chunk);
        block.barrier();
        store_transposed(thread, p, at, codes);
      } else if (live) {
        encode_rows(x, factors, p.round, p.out + (at.row + row) * p.out_stride + at.col + col, p.out_stride);
      }
      if (index + block.grid() < p.tiles.count) block.barrier();
    }
  }

 private:
  /// `powers`: the factors are powers of two.
  static PORTILE_DEVICE void encode_rows(const piece (&x)[share::rows], const float* sf_inv, bool powers,
                                         numeric::e4m3* out, std::int64_t stride) {
    float factor[share::cols];
    load_values<float, share::cols>(sf_inv, 0, factor);
    if constexpr (std::is_same_v<piece, scaled_codes>) {
      const packed_codes packed(x);
      if (powers && packed.takes(sf_inv, 0x1p+15f)) {
        std::uint32_t power[share::cols / 2];
        PORTILE_UNROLL
        for (int k = 0; k < share::cols / 2; ++k)
          power[k] = to_f16x2_toward_zero(factor[2 * k] * packed.unit, factor[2 * k + 1] * packed.unit);
        PORTILE_UNROLL
        for (int r = 0; r < share::rows; ++r) store8(out + r * stride, packed.encode(x[r], power));
        return;
      }
      if (packed.takes(sf_inv, numeric::fp32_max)) {
        PORTILE_UNROLL
        for (int k = 0; k < share::cols; ++k) factor[k] *= packed.unit;
        PORTILE_UNROLL
        for (int r = 0; r < share::rows; ++r) store8(out + r * stride, packed.encode(x[r], factor));
        return;
      }
    }
    PORTILE_UNROLL
    for (int r = 0; r < share::rows; ++r) {
      float v[share::cols];
      PORTILE_UNROLL
      for (int k = 0; k < share::cols; k += 2) {
        widen(x[r], k / 2, v[k], v[k + 1]);
        v[k] *= factor[k];
        v[k + 1] *= factor[k + 1];
      }
      store8(out, {{to_e4m3x4(v[0], v[1], v[2], v[3]), to_e4m3x4(v[4], v[5], v[6], v[7])}});
      out += stride;
    }
  }

  /// Place of word `four` of the 128 bytes of a column: permuted, so that the lanes of a wave, which hold
  /// different chunks of columns, write to different banks.
  static PORTILE_DEVICE unsigned place(unsigned four, unsigned chunk) { return (four ^ chunk * 2) * 4; }

  static PORTILE_DEVICE void encode_columns(const piece (&x)[share::rows], const float* sf_inv,
                                            unsigned char* codes, unsigned four, unsigned chunk) {
    static_assert(share::rows == 4, "a word of codes");
    unsigned char* to = codes + chunk * share::cols * size + place(four, chunk);
    PORTILE_UNROLL
    for (int k = 0; k < share::cols / 2; ++k) {
      const words2 factor = load8(sf_inv + 2 * k);
      float even[4], odd[4];
      PORTILE_UNROLL
      for (int r = 0; r < 4; ++r) {
        widen(x[r], k, even[r], odd[r]);
        even[r] *= numeric::bits_float(factor.w[0]);
        odd[r] *= numeric::bits_float(factor.w[1]);
      }
      store4(to + 2 * k * size, to_e4m3x4(even[0], even[1], even[2], even[3]));
      store4(to + (2 * k + 1) * size, to_e4m3x4(odd[0], odd[1], odd[2], odd[3]));
    }
  }
  /// Eight lanes write the 128 bytes of a column.
  static PORTILE_DEVICE void store_transposed(unsigned thread, const params& p, const tile_at& at,
                                              const unsigned char* codes) {
    const unsigned sixteen = thread % 8;
    PORTILE_UNROLL
    for (unsigned pass = 0; pass < 2; ++pass) {
      const unsigned col = thread / 8 + pass * (threads / 8);
      if (!at.holds(p.tiles, sixteen * 16, col)) continue;
      // The permutation moves pairs of words, so the four lie together, their halves perhaps exchanged.
      const unsigned first = place(sixteen * 4, col / share::cols);
      words4 w = load16(codes + col * size + (first & ~15u));
      if ((first & 8u) != 0) w = {{w.w[2], w.w[3], w.w[0], w.w[1]}};
      store16(p.out + (at.col + col) * p.out_stride + at.row + sixteen * 16, w);
    }
  }
};

/// Rows at any address: a thread a block of one column.
template <class Source>
struct any_channel_cast {
  static constexpr int threads = 256;
  struct params : channel_params<Source> {
    std::int64_t count;  ///< of scales
    divider width;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t index = block.index() * threads + block.thread(); index < p.count;
         index += block.grid() * threads) {
      const std::int64_t i = p.width.quotient(index), col = index - i * p.cols;
      const std::int64_t first = i << p.row_shift, below = first + (std::int64_t{1} << p.row_shift);
      const std::int64_t end = below < p.rows ? below : p.rows;
      float amax = 0.0f;
      PORTILE_NO_UNROLL
      for (std::int64_t r = first; r < end; ++r) amax = amax_step(amax, p.source.value(r, col));
      const numeric::scale s = p.scale_of(amax);
      p.store_scale(i, col, s);
      PORTILE_NO_UNROLL
      for (std::int64_t r = first; r < end; ++r)
        p.out[p.transposed ? col * p.out_stride + r : r * p.out_stride + col] =
            numeric::to_e4m3(p.source.value(r, col) * s.sf_inv);
    }
  }
};

/// `p`: what the operations have in common. `reuses_rows`: tiles are walked in strips of columns, so that
/// gathered rows are still in the cache when they are read again.
template <class Source, class P>
void launch_cast(const context& c, const P& p, const Source& source, bool aligned, std::int64_t rows,
                 std::int64_t cols, bool transposed, bool reuses_rows = false) {
  const quant::scale_flags flags = quant::flags_of(p);
  const int row_shift = shift_of(p.num_per_tokens);
  const channel_params<Source> common{source,
                                      static_cast<numeric::e4m3*>(p.out.data),
                                      p.out.stride(0),
                                      rows,
                                      cols,
                                      p.out_sf.data,
                                      p.out_sf.stride(0),
                                      row_shift,
                                      quant::amax_clamp(dtype::e4m3, flags),
                                      flags.round,
                                      flags.packed,
                                      transposed};
  const tile_grid tiles(rows, cols, reuses_rows ? 4 : 0);
  if (aligned && rows_aligned(p.out, transposed ? 16 : share::cols) && tiles.fits()) {
    using kernel = channel_cast<Source>;
    return gpu::launch<kernel>(c, tiles.count, kernel::shared_bytes(transposed), {common, tiles});
  }
  using kernel = any_channel_cast<Source>;
  const std::int64_t count = numeric::ceil_div(rows, p.num_per_tokens) * cols;
  if (count == 0) return;
  gpu::launch<kernel>(c, numeric::ceil_div(count, kernel::threads), 0, {common, count, divider(cols, count)});
}

template <class P>
void launch_rows(const context& c, const P& p, std::int64_t rows, const std::int32_t* pos, bool transposed) {
  word_scales x_sf;
  int group_shift = 0;
  if constexpr (requires { p.x_sf; })
    if (p.x_sf) {
      x_sf = word_scales(p.x_sf);
      group_shift = shift_of(*p.num_per_channels);
    }
  visit<float, numeric::bf16, numeric::e4m3>(p.x.dtype, [&](auto in) {
    using in_type = decltype(in);
    rows_source<in_type> s{};
    s.x = static_cast<const in_type*>(p.x.data);
    s.stride = p.x.stride(0);
    s.tokens = p.x.extent(0);
    s.pos = pos;
    s.x_sf = x_sf;
    s.group_shift = group_shift;
    s.trap = c.call.trap;
    launch_cast(c, p, s, rows_aligned(p.x, sizeof(in_type) == 1 ? 8 : 16), rows, p.x.extent(1), transposed,
                pos != nullptr);
  });
}

struct per_channel_cast_simt {
  static void launch(const context& c, const quant::per_channel_cast& p) {
    launch_rows(c, p, p.x.extent(0), nullptr, false);
  }
};
struct per_channel_cast_and_transpose_simt {
  static void launch(const context& c, const quant::per_channel_cast_and_transpose& p) {
    launch_rows(c, p, p.x.extent(0), nullptr, true);
  }
};
/// Rows without channels still have their positions looked at.
struct check_positions {
  static constexpr int threads = 256;
  struct params {
    const std::int32_t* pos;
    std::int64_t rows, tokens;
    std::uint64_t* trap;
  };
  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t r = block.index() * threads + block.thread(); r < p.rows; r += block.grid() * threads)
      if (p.pos[r] >= p.tokens) raise_trap(p.trap, 0, r);
  }
};
struct per_channel_cast_fused_simt {
  static void launch(const context& c, const quant::per_channel_cast_fused& p) {
    const auto* pos = p.pos_to_token ? static_cast<const std::int32_t*>(p.pos_to_token.data) : nullptr;
    const std::int64_t rows = p.out.extent(0);
    if (pos && p.x.extent(1) == 0 && c.call.trap)
      return gpu::launch<check_positions>(c, numeric::ceil_div(rows, check_positions::threads), 0,
                                          {pos, rows, p.x.extent(0), c.call.trap});
    launch_rows(c, p, p.out.extent(0), pos, false);
  }
};
struct swiglu_forward_and_per_channel_cast_and_transpose_simt {
  static void launch(const context& c, const quant::swiglu_forward_and_per_channel_cast_and_transpose& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
      using in_type = decltype(in);
      const std::int64_t hidden = p.out_sf.extent(1);
      const swiglu_source<in_type> s{static_cast<const in_type*>(p.x.data), p.x.stride(0), hidden,
                                     swiglu_clamp(p.clamp_value),
                                     swiglu_limits(swiglu_to_bf16, swiglu_clamp(p.clamp_value))};
      const bool aligned = rows_aligned(p.x, 16) && hidden * sizeof(in_type) % 16 == 0;
      launch_cast(c, p, s, aligned, p.x.extent(0), hidden, !p.without_transpose);
    });
  }
};

}  // namespace

extern const portile_implementation quant_per_channel_cast_simt, quant_per_channel_cast_and_transpose_simt,
    quant_per_channel_cast_fused_simt, quant_swiglu_forward_and_per_channel_cast_and_transpose_simt;
const portile_implementation quant_per_channel_cast_simt =
    make_simt<quant::per_channel_cast, per_channel_cast_simt>();
const portile_implementation quant_per_channel_cast_and_transpose_simt =
    make_simt<quant::per_channel_cast_and_transpose, per_channel_cast_and_transpose_simt>();
const portile_implementation quant_per_channel_cast_fused_simt =
    make_simt<quant::per_channel_cast_fused, per_channel_cast_fused_simt>();
const portile_implementation quant_swiglu_forward_and_per_channel_cast_and_transpose_simt =
    make_simt<quant::swiglu_forward_and_per_channel_cast_and_transpose,
              swiglu_forward_and_per_channel_cast_and_transpose_simt>();

}  // namespace portile::gpu
