#include <portile/kernels/quant/per_token_cast_and_cast_back.hpp>

#include "backends/gpu/quant/chunk.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {
namespace {

/// A thread holds 16 values, 1 to 8 lanes a group.
template <class T>
struct round_trip {
  static constexpr int threads = 512, values = 16;
  struct params {
    T* x;
    std::int64_t stride, chunks;
    divider row_chunks;
    quant::scale_flags flags;
    float clamp, max_q;
    int lanes;
    bool e2m1, aligned;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t base = block.index() * threads; base < p.chunks; base += block.grid() * threads) {
      const std::int64_t chunk = base + block.thread();
      const std::int64_t t = p.row_chunks.quotient(chunk);
      const std::int64_t first = (chunk - t * p.row_chunks.value()) * values;
      T* row = p.x + t * p.stride;
      const bool live = chunk < p.chunks;
      float v[values], amax = 0.0f;
      if (live) {
        load_chunk<values>(row, first, p.aligned, v);
        amax = amax_of<values>(amax, v);
      }
      amax = reduce_lanes(block, amax, p.lanes, larger{});
      if (!live) continue;
      const numeric::scale s = make_scale(amax, p.clamp, p.max_q, p.flags);
      PORTILE_UNROLL
      for (int i = 0; i < values; i += 2) {
        const float a = v[i] * s.sf_inv, b = v[i + 1] * s.sf_inv;
        if (p.e2m1) {
          v[i] = from_e2m1(to_e2m1_code(a)) * s.sf;
          v[i + 1] = from_e2m1(to_e2m1_code(b)) * s.sf;
        } else {
          from_e4m3x2(to_e4m3x2(a, b), v[i], v[i + 1]);
          v[i] *= s.sf;
          v[i + 1] *= s.sf;
        }
      }
      store_chunk<values>(row, first, p.aligned, v);
    }
  }
};

struct per_token_cast_and_cast_back_simt {
  static void launch(const context& c, const quant::per_token_cast_and_cast_back& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto value) {
      using kernel = round_trip<decltype(value)>;
      const dtype codes = quant::dtype_of_format(p.fmt, dtype::none);
      const std::int64_t rows = p.x.extent(0), in_row = p.x.extent(1) / kernel::values;
      if (rows == 0 || in_row == 0) return;
      typename kernel::params k;
      k.x = static_cast<decltype(value)*>(p.x.data);
      k.stride = p.x.stride(0);
      k.chunks = rows * in_row;
      k.row_chunks = divider(in_row, k.chunks + kernel::threads);
      k.flags = quant::flags_of(p);
      k.clamp = quant::default_clamp(codes, p.use_e4m3_sf);
      k.max_q = quant::max_code(codes);
      k.lanes = static_cast<int>(p.num_per_channels / kernel::values);
      k.e2m1 = codes == dtype::e2m1x2;
      k.aligned = loads_aligned<decltype(value), kernel::values>(p.x);
      gpu::launch<kernel>(c, numeric::ceil_div(k.chunks, kernel::threads), 0, k);
    });
  }
};

}  // namespace

extern const portile_implementation quant_per_token_cast_and_cast_back_simt;
const portile_implementation quant_per_token_cast_and_cast_back_simt =
    make_simt<quant::per_token_cast_and_cast_back, per_token_cast_and_cast_back_simt>();

}  // namespace portile::gpu
