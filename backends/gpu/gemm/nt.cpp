#include <portile/kernels/gemm/nt.hpp>

#include "backends/gpu/gemm/tile.hpp"

namespace portile::gpu {
namespace {

/// out = a * b^T, a tile a block.
template <class A, class B>
struct tiled_product {
  using shape = typename nt_product<A, B>::shape;
  static constexpr int threads = shape::threads;
  struct params {
    nt_product<A, B> product;
    tile_result out;
    divider row_tiles;
    std::int64_t tiles;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t work = block.index(); work < p.tiles; work += block.grid()) {
      const std::int64_t col_tile = p.row_tiles.quotient(work);
      const std::int64_t row0 = (work - col_tile * p.row_tiles.value()) * shape::rows,
                         col0 = col_tile * shape::cols;
      typename shape::sums sum;
      p.product(block, row0, col0, sum);
      shape::each(block.thread(), row0, p.product.m, col0, p.product.n, sum,
                  [&](std::int64_t m, std::int64_t n, float v) { p.out.store(m, n, v); });
    }
  }
};

struct nt_simt {
  static void launch(const context& c, const gemm::nt& p) {
    visit_factors(p, [&](auto a, auto b) { typed<decltype(a), decltype(b)>(c, p); });
  }

 private:
  template <class A, class B>
  static void typed(const context& c, const gemm::nt& p) {
    using kernel = tiled_product<A, B>;
    using shape = typename kernel::shape;
    typename kernel::params q{};
    q.product = make_nt_product<A, B>(p);
    if (q.product.m == 0 || q.product.n == 0 || (q.product.k == 0 && p.accumulate)) return;
    q.out = {p.out.data, p.out.stride(0), p.out.dtype, p.accumulate};
    const std::int64_t row_tiles = numeric::ceil_div(q.product.m, std::int64_t{shape::rows});
    q.tiles = row_tiles * numeric::ceil_div(q.product.n, std::int64_t{shape::cols});
    q.row_tiles = divider(row_tiles, q.tiles);
    gpu::launch<kernel>(c, q.tiles, shape::shared_bytes, q);
  }
};

}  // namespace

extern const portile_implementation gemm_nt_simt;
const portile_implementation gemm_nt_simt = make_simt<gemm::nt, nt_simt>();

}  // namespace portile::gpu
