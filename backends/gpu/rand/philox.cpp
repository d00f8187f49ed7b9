#include <portile/core/numeric/philox.hpp>
#include <portile/kernels/rand/philox.hpp>
#include <portile/kernels/rand/seed_mix.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

struct philox_rows {
  static constexpr int threads = 256;
  struct params {
    const std::uint32_t *counter, *key;
    std::uint32_t* out;
    std::int64_t counter_stride, key_stride, out_stride, rows;
    bool aligned;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t i = block.index() * threads + block.thread(); i < p.rows; i += block.grid() * threads) {
      const std::uint32_t *c = p.counter + i * p.counter_stride, *k = p.key + i * p.key_stride;
      std::uint32_t* out = p.out + i * p.out_stride;
      if (p.aligned) {
        const words4 counter = load16(c);
        const words2 key = load8(k);
        const auto w = numeric::philox4x32_10(
            numeric::philox_words{{counter.w[0], counter.w[1], counter.w[2], counter.w[3]}},
            numeric::philox_key{{key.w[0], key.w[1]}});
        store16(out, {{w.w[0], w.w[1], w.w[2], w.w[3]}});
      } else {
        const auto w = numeric::philox4x32_10(numeric::philox_words{{c[0], c[1], c[2], c[3]}},
                                              numeric::philox_key{{k[0], k[1]}});
        PORTILE_UNROLL
        for (int j = 0; j < 4; ++j) out[j] = w.w[j];
      }
    }
  }
};

struct seed_mix_rows {
  static constexpr int threads = 256;
  struct params {
    const std::int64_t* seed;
    std::uint32_t* out;
    std::int64_t rows;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t i = block.index() * threads + block.thread(); i < p.rows; i += block.grid() * threads)
      p.out[i] = numeric::seed_mix(static_cast<std::uint32_t>(p.seed[i]));
  }
};

struct philox_simt {
  static void launch(const context& c, const rand::philox& p) {
    const std::int64_t rows = p.out.extent(0);
    const bool aligned = rows_aligned(p.counter, 16) && rows_aligned(p.key, 8) && rows_aligned(p.out, 16);
    gpu::launch<philox_rows>(
        c, numeric::ceil_div(rows, philox_rows::threads), 0,
        {static_cast<const std::uint32_t*>(p.counter.data), static_cast<const std::uint32_t*>(p.key.data),
         static_cast<std::uint32_t*>(p.out.data), p.counter.stride(0), p.key.stride(0), p.out.stride(0), rows,
         aligned});
  }
};

struct seed_mix_simt {
  static void launch(const context& c, const rand::seed_mix& p) {
    const std::int64_t rows = p.out.extent(0);
    gpu::launch<seed_mix_rows>(
        c, numeric::ceil_div(rows, seed_mix_rows::threads), 0,
        {static_cast<const std::int64_t*>(p.seed.data), static_cast<std::uint32_t*>(p.out.data), rows});
  }
};

}  // namespace

extern const portile_implementation rand_philox_simt, rand_seed_mix_simt;
const portile_implementation rand_philox_simt = make_simt<rand::philox, philox_simt>();
const portile_implementation rand_seed_mix_simt = make_simt<rand::seed_mix, seed_mix_simt>();

}  // namespace portile::gpu
