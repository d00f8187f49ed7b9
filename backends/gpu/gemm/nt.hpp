#pragma once
// gemm.nt with any way to compute a tile's product.
#include <portile/kernels/gemm/nt.hpp>

#include "backends/gpu/gemm/tile.hpp"

namespace portile::gpu {

/// out = a * b^T, a tile a block.
template <class Product>
struct tiled_product {
  using shape = typename Product::shape;
  static constexpr int threads = shape::threads;
  struct params {
    Product product;
    tile_result out;
    divider row_tiles;
    std::int64_t tiles;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t work = block.index(); work < p.tiles; work += block.grid()) {
      const std::int64_t tile = Product::tile_of(work, p.tiles), col_tile = p.row_tiles.quotient(tile);
      const std::int64_t row0 = (tile - col_tile * p.row_tiles.value()) * shape::rows,
                         col0 = col_tile * shape::cols;
      typename shape::sums sum;
      p.product(block, row0, col0, sum);
      shape::each(block.thread(), row0, p.product.m, col0, p.product.n, sum,
                  [&](std::int64_t m, std::int64_t n, float v) { p.out.store(m, n, v); });
    }
  }
};

/// Product<A, B> computes a tile.
template <template <class, class> class Product>
struct nt_by {
  static void launch(const context& c, const gemm::nt& p) {
    visit_factors(p, [&](auto a, auto b) { start<Product<decltype(a), decltype(b)>>(c, p); });
  }

 private:
  template <class T>
  static void start(const context& c, const gemm::nt& p) {
    using kernel = tiled_product<T>;
    using shape = typename kernel::shape;
    typename kernel::params q{};
    q.product = make_product<T>(p);
    if (q.product.m == 0 || q.product.n == 0 || (q.product.k == 0 && p.accumulate)) return;
    q.out = {p.out.data, p.out.stride(0), p.out.dtype, p.accumulate};
    const std::int64_t row_tiles = numeric::ceil_div(q.product.m, std::int64_t{shape::rows});
    q.tiles = row_tiles * numeric::ceil_div(q.product.n, std::int64_t{shape::cols});
    q.row_tiles = divider(row_tiles, q.tiles);
    gpu::launch<kernel>(c, q.tiles, shape::shared_bytes, q);
  }
};

}  // namespace portile::gpu
