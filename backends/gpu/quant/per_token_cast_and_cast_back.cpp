#include <portile/kernels/quant/per_token_cast_and_cast_back.hpp>

#include "backends/gpu/quant/chunk.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {
namespace {

/// A thread holds the values of a load of 16 bytes, or 16 values of rows that are not aligned; 1 to 32 lanes
/// a group.
template <class T, bool aligned>
struct round_trip {
  static constexpr int threads = 256;
  static constexpr int values = aligned ? 16 / static_cast<int>(sizeof(T)) : 16;
  struct params {
    T* x;
    std::int64_t stride, chunks;
    divider row_chunks;
    quant::scale_flags flags;
    float clamp, max_q;
    int lanes;
    bool e2m1;
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
        load_chunk<values>(row, first, aligned, v);
        amax = amax_of<values>(amax, v);
      }
      amax = reduce_lanes(block, amax, p.lanes, larger{});
      if (!live) continue;
      const numeric::scale s = make_scale(amax, p.clamp, p.max_q, p.flags);
      if (p.e2m1) {
        PORTILE_UNROLL
        for (int i = 0; i < values; ++i) v[i] = from_e2m1(to_e2m1_code(v[i] * s.sf_inv)) * s.sf;
      } else {
        PORTILE_UNROLL
        for (int i = 0; i < values; i += 2) {
          from_e4m3x2(to_e4m3x2(v[i] * s.sf_inv, v[i + 1] * s.sf_inv), v[i], v[i + 1]);
          v[i] *= s.sf;
          v[i + 1] *= s.sf;
        }
      }
      store_chunk<values>(row, first, aligned, v);
    }
  }
};

template <class T, bool aligned>
void launch_round_trip(const context& c, const quant::per_token_cast_and_cast_back& p) {
  using kernel = round_trip<T, aligned>;
  const dtype codes = quant::dtype_of_format(p.fmt, dtype::none);
  const std::int64_t rows = p.x.extent(0), in_row = p.x.extent(1) / kernel::values;
  if (rows == 0 || in_row == 0) return;
  const std::int64_t chunks = rows * in_row;
  gpu::launch<kernel>(
      c, numeric::ceil_div(chunks, kernel::threads), 0,
      {static_cast<T*>(p.x.data), p.x.stride(0), chunks, divider(in_row, chunks + kernel::threads),
       quant::flags_of(p), quant::amax_clamp(codes, quant::flags_of(p)), quant::max_code(codes),
       static_cast<int>(p.num_per_channels / kernel::values), codes == dtype::e2m1x2});
}

struct per_token_cast_and_cast_back_simt {
  static void launch(const context& c, const quant::per_token_cast_and_cast_back& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto value) {
      using type = decltype(value);
      rows_aligned(p.x, 16) ? launch_round_trip<type, true>(c, p) : launch_round_trip<type, false>(c, p);
    });
  }
};

}  // namespace

extern const portile_implementation quant_per_token_cast_and_cast_back_simt;
const portile_implementation quant_per_token_cast_and_cast_back_simt =
    make_simt<quant::per_token_cast_and_cast_back, per_token_cast_and_cast_back_simt>();

}  // namespace portile::gpu
