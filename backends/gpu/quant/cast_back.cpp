#include <portile/kernels/quant/cast_back.hpp>
#include <portile/kernels/quant/cast_back_e5m6.hpp>
#include <portile/kernels/quant/per_token_cast_back.hpp>

#include "backends/gpu/quant/chunk.hpp"

namespace portile::gpu {
namespace {

/// As many values a thread as make one store of 16 bytes, where the codes allow it.
template <class Code, class Out>
struct decode {
  static constexpr int threads = 256;
  static constexpr int values = std::is_same_v<Out, float> && std::is_same_v<Code, numeric::e4m3> ? 4 : 8;
  struct params {
    const Code* x;
    Out* out;
    std::int64_t x_stride, out_stride, chunks;
    divider row_chunks, block_rows, block_cols;
    scale_reader x_sf;
    bool aligned;
    bool one_scale;  ///< of a chunk
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t chunk = block.index() * threads + block.thread(); chunk < p.chunks;
         chunk += block.grid() * threads) {
      const std::int64_t t = p.row_chunks.quotient(chunk);
      const std::int64_t first = (chunk - t * p.row_chunks.value()) * values;
      const std::int64_t sf_row = p.block_rows.quotient(t);
      float v[values];
      load_chunk<values>(p.x + t * p.x_stride, first, p.aligned, v);
      if (p.one_scale) {
        const float sf = p.x_sf(sf_row, p.block_cols.quotient(first));
        PORTILE_UNROLL
        for (int i = 0; i < values; ++i) v[i] *= sf;
      } else {
        for (int i = 0; i < values; ++i) v[i] *= p.x_sf(sf_row, p.block_cols.quotient(first + i));
      }
      store_chunk<values>(p.out + t * p.out_stride, first, p.aligned, v);
    }
  }
};

void launch_decode(const context& c, const tensor& x, const tensor& x_sf, const tensor& out,
                   std::int64_t block_rows, std::int64_t block_cols) {
  visit<numeric::e4m3, numeric::e2m1x2, numeric::e5m6x8>(x.dtype, [&](auto code) {
    visit<float, numeric::bf16>(out.dtype, [&](auto value) {
      using code_type = decltype(code);
      using kernel = decode<code_type, decltype(value)>;
      const std::int64_t rows = out.extent(0), cols = out.extent(1);
      if (rows == 0 || cols == 0) return;
      typename kernel::params k;
      k.x = static_cast<const code_type*>(x.data);
      k.out = static_cast<decltype(value)*>(out.data);
      k.x_stride = x.stride(0);
      k.out_stride = out.stride(0);
      k.chunks = rows * (cols / kernel::values);
      k.row_chunks = divider(cols / kernel::values, k.chunks);
      k.block_rows = divider(block_rows, rows);
      k.block_cols = divider(block_cols, cols);
      k.x_sf = scale_reader(x_sf, block_cols == 1);
      k.aligned =
          loads_aligned<code_type, kernel::values>(x) && stores_aligned<decltype(value), kernel::values>(out);
      k.one_scale = block_cols % kernel::values == 0 || block_cols >= cols;
      gpu::launch<kernel>(c, numeric::ceil_div(k.chunks, kernel::threads), 0, k);
    });
  });
}

struct cast_back_simt {
  static void launch(const context& c, const quant::cast_back& p) {
    launch_decode(c, p.x, p.x_sf, p.out, p.x_block_rows, p.x_block_cols);
  }
};
struct per_token_cast_back_simt {
  static void launch(const context& c, const quant::per_token_cast_back& p) {
    launch_decode(c, p.x, p.x_sf, p.out, 1, p.num_per_channels);
  }
};
struct cast_back_e5m6_simt {
  static void launch(const context& c, const quant::cast_back_e5m6& p) {
    launch_decode(c, p.x, p.x_sf, p.out, p.x_block_rows, p.x_block_cols);
  }
};

}  // namespace

extern const portile_implementation quant_cast_back_simt, quant_per_token_cast_back_simt,
    quant_cast_back_e5m6_simt;
const portile_implementation quant_cast_back_simt = make_simt<quant::cast_back, cast_back_simt>();
const portile_implementation quant_per_token_cast_back_simt =
    make_simt<quant::per_token_cast_back, per_token_cast_back_simt>();
const portile_implementation quant_cast_back_e5m6_simt =
    make_simt<quant::cast_back_e5m6, cast_back_e5m6_simt>();

}  // namespace portile::gpu
