#include <portile/kernels/engram/make_offsets.hpp>

#include "backends/gpu/reduce.hpp"
#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// A wave a layer: running sums of as many sizes as it has lanes at a time.
struct running_offsets {
  static constexpr int threads = 64;
  struct params {
    const std::int32_t* vocab;
    std::int32_t* offsets;
    std::int64_t layer_stride, size_stride, table_stride, offset_stride;
    std::int64_t layers, columns;
    divider tables;
    std::uint64_t* trap;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    constexpr std::int64_t top = 2147483647, bottom = -top - 1;
    for (std::int64_t l = block.index() * Block::num_waves + block.wave(); l < p.layers;
         l += block.grid() * Block::num_waves) {
      std::int64_t before = 0;
      for (std::int64_t first = 0; first < p.columns; first += Block::wave_size) {
        const std::int64_t column = first + block.lane();
        std::int64_t size = 0;
        if (column < p.columns) {
          const std::int64_t row = p.tables.quotient(column);
          size = p.vocab[l * p.layer_stride + row * p.size_stride +
                         (column - row * p.tables.value()) * p.table_stride];
        }
        const std::int64_t through = before + inclusive_sum_wave(block, size), sum = through - size;
        if (column < p.columns) {
          if (sum > top || sum < bottom) raise_trap(p.trap, 0, l * p.columns + column);
          p.offsets[l * p.offset_stride + column] = static_cast<std::int32_t>(sum > top      ? top
                                                                              : sum < bottom ? bottom
                                                                                             : sum);
        }
        before = block.shuffle(through, Block::wave_size - 1);
      }
    }
  }
};

struct make_offsets_simt {
  static void launch(const context& c, const engram::make_offsets& p) {
    const tensor& v = p.vocab_sizes;
    const std::int64_t layers = v.extent(0), columns = v.extent(1) * v.extent(2);
    if (layers * columns == 0) return;
    gpu::launch<running_offsets>(
        c, numeric::ceil_div(layers, running_offsets::threads / c.call.device->wave_size), 0,
        {static_cast<const std::int32_t*>(v.data), static_cast<std::int32_t*>(p.offsets.data), v.stride(0),
         v.stride(1), v.extent(2) > 1 ? v.stride(2) : 0, p.offsets.stride(0), layers, columns,
         divider(v.extent(2), columns), c.call.trap});
  }
};

}  // namespace

extern const portile_implementation engram_make_offsets_simt;
const portile_implementation engram_make_offsets_simt = make_simt<engram::make_offsets, make_offsets_simt>();

}  // namespace portile::gpu
