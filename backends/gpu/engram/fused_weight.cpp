#include <portile/kernels/engram/fused_weight.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// Four products a thread.
struct fused_weight_fours {
  static constexpr int threads = 128, values = 4;
  struct params {
    const numeric::bf16 *hidden, *embed;
    float* fused;
    std::int64_t hidden_stride, embed_stride, fused_stride, width, items;
    divider per_row;
    bool aligned;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t item = block.index() * threads + block.thread(); item < p.items;
         item += block.grid() * threads) {
      const std::int64_t i = p.per_row.quotient(item), d = (item - i * p.per_row.value()) * values;
      const numeric::bf16 *hidden = p.hidden + i * p.hidden_stride + d,
                          *embed = p.embed + i * p.embed_stride + d;
      float* fused = p.fused + i * p.fused_stride + d;
      if (p.aligned && d + values <= p.width) {
        const words2 a = load8(hidden), b = load8(embed);
        const float v[values] = {bf16_low(a.w[0]) * bf16_low(b.w[0]), bf16_high(a.w[0]) * bf16_high(b.w[0]),
                                 bf16_low(a.w[1]) * bf16_low(b.w[1]), bf16_high(a.w[1]) * bf16_high(b.w[1])};
        store_values<float, values>(fused, 0, v);
      } else {
        for (int j = 0; j < values && d + j < p.width; ++j)
          fused[j] = load_value(hidden, j) * load_value(embed, j);
      }
    }
  }
};

struct fused_weight_simt {
  static void launch(const context& c, const engram::fused_weight& p) {
    using kernel = fused_weight_fours;
    kernel::params k{};
    k.hidden = static_cast<const numeric::bf16*>(p.weight_hidden.data);
    k.embed = static_cast<const numeric::bf16*>(p.weight_embed.data);
    k.fused = static_cast<float*>(p.weight_fused.data);
    k.hidden_stride = p.weight_hidden.stride(0);
    k.embed_stride = p.weight_embed.stride(0);
    k.fused_stride = p.weight_fused.stride(0);
    k.width = p.weight_fused.extent(1);
    const std::int64_t per_row = numeric::ceil_div(k.width, kernel::values);
    k.items = p.weight_fused.extent(0) * per_row;
    if (k.items == 0) return;
    k.per_row = divider(per_row, k.items + kernel::threads);
    k.aligned = rows_aligned(p.weight_hidden, 8) && rows_aligned(p.weight_embed, 8) &&
                rows_aligned(p.weight_fused, 16);
    gpu::launch<kernel>(c, numeric::ceil_div(k.items, kernel::threads), 0, k);
  }
};

}  // namespace

extern const portile_implementation engram_fused_weight_simt;
const portile_implementation engram_fused_weight_simt = make_simt<engram::fused_weight, fused_weight_simt>();

}  // namespace portile::gpu
