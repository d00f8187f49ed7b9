#include <portile/kernels/norm/forward_and_per_token_cast.hpp>

#include "backends/gpu/norm/rms_norm.hpp"

namespace portile::gpu {
namespace {

/// The exponents of four groups of 32 channels, in a word.
struct exponent_words {
  std::uint32_t* data = nullptr;
  std::int64_t batch = 0, row = 0, col = 0;

  exponent_words() = default;
  explicit exponent_words(const tensor& t) {
    if (t.dtype != dtype::ue8m0x4) return;
    data = static_cast<std::uint32_t*>(t.data);
    batch = t.rank == 3 ? t.stride(0) : 0;
    row = t.stride(t.rank - 2);
    col = t.stride(t.rank - 1);
  }
};

template <class T>
struct norm_cast_params {
  rms_norm_params<T> norm;
  row_pointers<std::uint8_t> out;
  row_pointers<numeric::bf16> out_bf16;
  exponent_words packed_sf, mega_moe_sf;
  float* sf;  ///< where the scales are not packed
  std::int64_t sf_batch, sf_row, sf_col;
  divider mega_block, mega_rows;  ///< tokens of a block, and the rows it takes
  float clamp, max_q;
  bool e2m1, round;
};

template <class T, bool whole_block, bool aligned>
struct norm_cast {
  using row = rms_norm_row<T, whole_block, aligned>;
  using params = norm_cast_params<T>;
  static constexpr int threads = row::threads, min_blocks = row::narrow ? 3 : 2;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    row::for_each_row(block, p.norm, [&](std::int64_t b, std::int64_t t) {
      const row r(block, p.norm, b, t);
      PORTILE_UNROLL
      for (int c = 0; c < row::chunks; c += 2) {
        const words2 codes[2] = {encode(block, p, r, b, t, c), encode(block, p, r, b, t, c + 1)};
        if constexpr (aligned) {
          store_pair(block, p, p.out(b, t), codes, c);
        } else {
          PORTILE_UNROLL
          for (int k = 0; k < 2; ++k) {
            const std::int64_t j = row::first_value(block, c + k);
            const int bytes = p.e2m1 ? 4 : 8;
            PORTILE_UNROLL
            for (int i = 0; i < 8; ++i)
              if (i < bytes && j < p.norm.hidden)
                p.out(b, t)[j / 8 * bytes + i] = static_cast<std::uint8_t>(codes[k].w[i / 4] >> (i % 4 * 8));
          }
        }
      }
    });
  }

 private:
  /// The codes of chunk c; stores what else there is of it.
  template <class Block>
  static PORTILE_DEVICE words2 encode(const Block& block, const params& p, const row& r, std::int64_t b,
                                      std::int64_t t, int c) {
    // Four lanes a group; hidden_size is a multiple of 32, so that all of them are live or none.
    const std::int64_t j = row::first_value(block, c);
    const bool live = j < p.norm.hidden;
    const raw8<T> value = r.normalised(block, p.norm, c);
    float v[8], amax = 0;
    PORTILE_UNROLL
    for (int i = 0; i < 8; ++i) {
      v[i] = value[i];
      amax = numeric::amax_step(amax, v[i]);
    }
    if (p.out_bf16 && live) raw8<numeric::bf16>::from(v).template store<aligned>(p.out_bf16(b, t) + j);
    amax = reduce_lanes(block, amax, 4, larger{});
    const numeric::scale s = make_scale(amax, p.clamp, p.max_q, {.round = p.round});
    store_scale(block, p, b, t, j / 32, live, s);
    PORTILE_UNROLL
    for (int i = 0; i < 8; ++i) v[i] *= s.sf_inv;
    if (!p.e2m1) return {{to_e4m3x4(v[0], v[1], v[2], v[3]), to_e4m3x4(v[4], v[5], v[6], v[7])}};
    words2 w{};
    PORTILE_UNROLL
    for (int i = 0; i < 8; ++i) w.w[0] |= to_e2m1_code(v[i]) << (4 * i);
    return w;
  }

  template <class Block>
  static PORTILE_DEVICE void store_scale(const Block& block, const params& p, std::int64_t b, std::int64_t t,
                                         std::int64_t group, bool live, const numeric::scale& s) {
    const int lane = row::lane(block);
    if (p.sf && live && lane % 4 == 0) p.sf[b * p.sf_batch + t * p.sf_row + group * p.sf_col] = s.sf;
    if (!p.packed_sf.data && !p.mega_moe_sf.data) return;
    std::uint32_t word = live ? std::uint32_t{s.exponent} << (lane / 4 % 4 * 8) : 0u;
    word |= block.shuffle_xor(word, 4);
    word |= block.shuffle_xor(word, 8);
    if (!live || lane % 16 != 0) return;
    if (p.packed_sf.data)
      p.packed_sf.data[b * p.packed_sf.batch + t * p.packed_sf.row + group / 4 * p.packed_sf.col] = word;
    if (p.mega_moe_sf.data) {
      const std::int64_t m = p.mega_block.quotient(t), i = t - m * p.mega_block.value();
      const std::int64_t mega_row = m * p.mega_rows.value() + i / 128 * 128 + i % 32 * 4 + i % 128 / 32;
      p.mega_moe_sf.data[mega_row * p.mega_moe_sf.row + group / 4 * p.mega_moe_sf.col] = word;
    }
  }

  /// Neighbouring lanes exchange codes of chunks c and c + 1, so that each stores those of both lanes for one
  /// of them: 16 bytes instead of 8.
  template <class Block>
  static PORTILE_DEVICE void store_pair(const Block& block, const params& p, std::uint8_t* out,
                                        const words2 (&codes)[2], int c) {
    const bool odd = row::lane(block) % 2 != 0;
    const words2 sent = odd ? codes[0] : codes[1], kept = odd ? codes[1] : codes[0];
    words2 got{};
    got.w[0] = block.shuffle_xor(sent.w[0], 1);
    if (!p.e2m1) got.w[1] = block.shuffle_xor(sent.w[1], 1);
    const words2 low = odd ? got : kept, high = odd ? kept : got;
    const std::int64_t j = row::first_value(block, odd ? c + 1 : c) - (odd ? 8 : 0);
    if (j >= p.norm.hidden) return;
    if (p.e2m1)
      store8(out + j / 2, {{low.w[0], high.w[0]}});
    else
      store16(out + j, {{low.w[0], low.w[1], high.w[0], high.w[1]}});
  }
};

struct forward_and_per_token_cast_simt {
  static void launch(const context& c, const norm::forward_and_per_token_cast& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto type) {
      using T = decltype(type);
      norm_cast_params<T> k{.norm = rms_norm_params<T>(p),
                            .out = row_pointers<std::uint8_t>(p.out),
                            .out_bf16 = row_pointers<numeric::bf16>(p.out_bf16),
                            .packed_sf = exponent_words(p.out_sf),
                            .mega_moe_sf = exponent_words(p.mega_moe_sf),
                            .sf = nullptr,
                            .sf_batch = p.out_sf.rank == 3 ? p.out_sf.stride(0) : 0,
                            .sf_row = p.out_sf.stride(p.out_sf.rank - 2),
                            .sf_col = p.out_sf.stride(p.out_sf.rank - 1),
                            .mega_block = {},
                            .mega_rows = {},
                            .clamp = quant::amax_clamp(p.out.dtype, quant::flags_of(p)),
                            .max_q = quant::max_code(p.out.dtype),
                            .e2m1 = p.out.dtype == dtype::e2m1x2,
                            .round = p.round_sf};
      if (p.out_sf.dtype == dtype::f32) k.sf = static_cast<float*>(p.out_sf.data);
      if (p.mega_moe_block_m > 0) {
        k.mega_block = divider(p.mega_moe_block_m, std::max<std::int64_t>(k.norm.rows, 1));
        k.mega_rows = divider(numeric::align_up(p.mega_moe_block_m, 128), 1);
      }
      launch_rows<norm_cast, T>(c, k, rms_norm_params<T>::aligned(p) && all_rows_aligned(p.out, p.out_bf16));
    });
  }
};

}  // namespace

extern const portile_implementation norm_forward_and_per_token_cast_simt;
const portile_implementation norm_forward_and_per_token_cast_simt =
    make_simt<norm::forward_and_per_token_cast, forward_and_per_token_cast_simt>();

}  // namespace portile::gpu
