#include <portile/kernels/quant/cast.hpp>

#include "backends/gpu/quant/chunk.hpp"

namespace portile::gpu {
namespace {

/// As many elements a thread as make one store of 16 bytes: a wave's stores leave no gaps.
template <class In, class Out>
struct convert {
  static constexpr int threads = 256;
  static constexpr int values = 16 / static_cast<int>(sizeof(Out));
  struct params {
    const In* x;
    Out* out;
    std::int64_t count;
    bool aligned, stochastic;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const std::int64_t step = block.grid() * threads * values;
    for (std::int64_t first = (block.index() * threads + block.thread()) * values; first < p.count;
         first += step) {
      if (first + values <= p.count && !p.stochastic) {
        float v[values];
        if constexpr (std::is_same_v<In, numeric::bf16> && values == 4)
          load_four(p, first, v);
        else
          load_chunk<values>(p.x, first, p.aligned, v);
        store_chunk<values>(p.out, first, p.aligned, v);
      } else {
        const std::int64_t end = first + values < p.count ? first + values : p.count;
        if (p.stochastic)
          for (std::int64_t q = first; q < end; q += 4) stochastic_quad(p, q);
        else
          for (std::int64_t k = first; k < end; ++k) store_one(p.out + k, load_value(p.x, k));
      }
    }
  }

 private:
  static PORTILE_DEVICE void load_four(const params& p, std::int64_t first, float (&v)[values]) {
    if (p.aligned) {
      const words2 w = load8(p.x + first);
      PORTILE_UNROLL
      for (int i = 0; i < values; ++i) v[i] = i % 2 == 0 ? bf16_low(w.w[i / 2]) : bf16_high(w.w[i / 2]);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < values; ++i) v[i] = load_value(p.x, first + i);
    }
  }
  static PORTILE_DEVICE void store_one(Out* to, float v) {
    if constexpr (std::is_same_v<Out, numeric::e4m3>)
      *to = numeric::to_e4m3(v);
    else
      store_value(to, 0, v);
  }
  // The number of elements is a multiple of four.
  static PORTILE_DEVICE void stochastic_quad(const params& p, std::int64_t q) {
    using numeric::float_bits;
    float v[4];
    PORTILE_UNROLL
    for (int i = 0; i < 4; ++i) v[i] = load_value(p.x, q + i);
    const auto words = numeric::sr_hash(float_bits(v[0]), float_bits(v[1]), float_bits(v[2]),
                                        float_bits(v[3]), static_cast<std::uint32_t>(q / 4));
    PORTILE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<Out, numeric::bf16>)
        p.out[q + i] = numeric::stochastic_bf16(v[i], numeric::sr_slice_bf16(words, i));
      if constexpr (std::is_same_v<Out, numeric::e4m3>)
        p.out[q + i] = numeric::stochastic_e4m3(v[i], numeric::sr_slice_e4m3(words.r0, i));
    }
  }
};

struct cast_simt {
  static void launch(const context& c, const quant::cast& p) {
    visit<float, numeric::bf16, numeric::e4m3>(p.x.dtype, [&](auto in) {
      visit<float, numeric::bf16, numeric::e4m3>(p.out.dtype, [&](auto out) {
        using kernel = convert<decltype(in), decltype(out)>;
        const auto multiple_of = [](const void* at, std::int64_t bytes) {
          return reinterpret_cast<std::uintptr_t>(at) % static_cast<std::uintptr_t>(bytes) == 0;
        };
        const bool aligned = multiple_of(p.x.data, chunk_load_alignment<decltype(in), kernel::values>()) &&
                             multiple_of(p.out.data, chunk_store_alignment<decltype(out), kernel::values>());
        const std::int64_t count = p.x.numel();
        gpu::launch<kernel>(c, numeric::ceil_div(count, kernel::threads * kernel::values), 0,
                            {static_cast<const decltype(in)*>(p.x.data),
                             static_cast<decltype(out)*>(p.out.data), count, aligned, p.stochastic_rounding});
      });
    });
  }
};

}  // namespace

extern const portile_implementation quant_cast_simt;
const portile_implementation quant_cast_simt = make_simt<quant::cast, cast_simt>();

}  // namespace portile::gpu
