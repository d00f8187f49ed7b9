#include <portile/kernels/engram/sinkhorn_momentum_update.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// A thread updates as many elements as 16 bytes of the narrower type hold, then the last ones one by one.
template <class G, class M>
struct momentum_update {
  static constexpr int threads = 256;
  static constexpr int values = sizeof(G) == 4 && sizeof(M) == 4 ? 4 : 8;
  struct params {
    const G* grad;
    M* momentum;
    float* out;
    std::int64_t count, vectors, items;
    float a, b;
    bool nesterov;
  };

  static PORTILE_DEVICE void update(const params& p, float g, float& m, float& out) {
    m = ::fmaf(m, p.b, p.a * g);
    out = p.nesterov ? ::fmaf(g, p.a, p.b * m) : m;
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t item = block.index() * threads + block.thread(); item < p.items;
         item += block.grid() * threads) {
      if (item < p.vectors) {
        float g[values], m[values], out[values];
        load_values<G, values>(p.grad, item * values, g);
        load_values<M, values>(p.momentum, item * values, m);
        PORTILE_UNROLL
        for (int i = 0; i < values; ++i) update(p, g[i], m[i], out[i]);
        store_values<M, values>(p.momentum, item * values, m);
        store_values<float, values>(p.out, item * values, out);
      } else {
        const std::int64_t i = p.vectors * values + item - p.vectors;
        float m = load_value(p.momentum, i), out;
        update(p, load_value(p.grad, i), m, out);
        store_value(p.momentum, i, m);
        p.out[i] = out;
      }
    }
  }
};

struct momentum_simt {
  static void launch(const context& c, const engram::sinkhorn_momentum_update& p) {
    visit<float, numeric::bf16>(p.grad.dtype, [&](auto g) {
      visit<float, numeric::bf16>(p.momentum_buffer.dtype, [&](auto m) {
        using kernel = momentum_update<decltype(g), decltype(m)>;
        typename kernel::params k{};
        k.grad = static_cast<const decltype(g)*>(p.grad.data);
        k.momentum = static_cast<decltype(m)*>(p.momentum_buffer.data);
        k.out = static_cast<float*>(p.out.data);
        k.count = p.out.extent(0);
        k.a = static_cast<float>(1.0 - p.beta1);
        k.b = static_cast<float>(p.beta1);
        k.nesterov = p.nesterov;
        const bool aligned =
            rows_aligned(p.grad, 16) && rows_aligned(p.momentum_buffer, 16) && rows_aligned(p.out, 16);
        k.vectors = aligned ? k.count / kernel::values : 0;
        k.items = k.vectors + (k.count - k.vectors * kernel::values);
        gpu::launch<kernel>(c, numeric::ceil_div(k.items, kernel::threads), 0, k);
      });
    });
  }
};

}  // namespace

extern const portile_implementation engram_sinkhorn_momentum_update_simt;
const portile_implementation engram_sinkhorn_momentum_update_simt =
    make_simt<engram::sinkhorn_momentum_update, momentum_simt>();

}  // namespace portile::gpu
