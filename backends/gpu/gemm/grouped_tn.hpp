#pragma once
// gemm.grouped_tn with any way to compute a tile's product.
#include <portile/kernels/gemm/grouped_tn.hpp>

#include "backends/gpu/gemm/experts.hpp"

namespace portile::gpu {

/// The factors of a^T * b over their rows.
template <class T>
struct tn_operands {
  const T *a, *b;
  std::int64_t a_stride, b_stride;
  std::int64_t m, n;  ///< columns of a and of b
  bool truncate, a_aligned, b_aligned;
};

/// out[e] = a_e^T * b_e, a tile a block: the rows of the expert are the channels of the tile's product.
template <class Product>
struct transposed_product {
  using shape = typename Product::shape;
  static constexpr int threads = shape::threads;
  static constexpr std::size_t flag_at = shape::shared_bytes, shared_bytes = flag_at + 16;

  struct params {
    Product product;
    float* out;
    std::int64_t out_batch, out_stride;
    expert_rows rows_of;
    divider col_tiles, row_tiles;
    std::int64_t tiles;
    bool accumulate;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* const flag = block.template shared<std::uint32_t>(flag_at);
    for (std::int64_t work = block.index(); work < p.tiles; work += block.grid()) {
      const std::int64_t in_all = p.col_tiles.quotient(work);
      const std::int64_t col0 = (work - in_all * p.col_tiles.value()) * shape::cols;
      const std::int64_t e = p.row_tiles.quotient(in_all);
      const std::int64_t row0 = (in_all - e * p.row_tiles.value()) * shape::rows;
      const expert_rows::range mine = p.rows_of(e);
      const bool shared = p.rows_of.shares(block, e, mine, flag);
      if (block.thread() == 0) *flag = 0;

      typename shape::sums sum;
      bool any = false;
      // Zero times zero adds nothing: a row that another expert has.
      const auto own = [&](std::int64_t row) {
        const bool yes = !(shared && p.rows_of.taken_by_earlier(e, row));
        any |= yes;
        return yes;
      };
      p.product(block, row0, col0, mine.begin, mine.end, own, sum);
      block.barrier();
      if (any) block.atomic_or(flag, 1u);
      block.barrier();
      if (*flag != 0 || !p.accumulate) {
        const tile_result out{p.out + e * p.out_batch, p.out_stride, dtype::f32, p.accumulate};
        shape::each(block.thread(), row0, p.product.m, col0, p.product.n, sum,
                    [&](std::int64_t m, std::int64_t n, float v) { out.store(m, n, v); });
      }
      block.barrier();
    }
  }
};

/// Product<T> computes a tile.
template <template <class> class Product>
struct grouped_tn_by {
  static void launch(const context& c, const gemm::grouped_tn& p) {
    visit<numeric::bf16, float>(p.a.dtype, [&](auto t) { start<Product<decltype(t)>>(c, p); });
  }

 private:
  template <class T>
  static void start(const context& c, const gemm::grouped_tn& p) {
    using kernel = transposed_product<T>;
    using shape = typename kernel::shape;
    typename kernel::params q{};
    T& product = q.product;
    const std::int64_t experts = p.out.extent(0);
    q.rows_of =
        make_expert_rows(p.expert_start, p.expert_end, p.num_live_per_expert, {}, experts, p.a.extent(0));
    report_segments(c, q.rows_of);
    product.m = p.out.extent(1);
    product.n = p.out.extent(2);
    if (experts == 0 || product.m == 0 || product.n == 0) return;
    product.a = static_cast<decltype(product.a)>(p.a.data);
    product.b = static_cast<decltype(product.b)>(p.b.data);
    product.a_stride = p.a.stride(0);
    product.b_stride = p.b.stride(0);
    product.truncate = p.tf32_rounding == "truncate";
    product.a_aligned = rows_aligned(p.a, T::alignment);
    product.b_aligned = rows_aligned(p.b, T::alignment);
    q.out = static_cast<float*>(p.out.data);
    q.out_batch = p.out.stride(0);
    q.out_stride = p.out.stride(1);
    const std::int64_t row_tiles = numeric::ceil_div(product.m, std::int64_t{shape::rows}),
                       col_tiles = numeric::ceil_div(product.n, std::int64_t{shape::cols});
    q.tiles = experts * row_tiles * col_tiles;
    q.col_tiles = divider(col_tiles, q.tiles);
    q.row_tiles = divider(row_tiles, q.tiles);
    q.accumulate = p.accumulate;
    gpu::launch<kernel>(c, q.tiles, kernel::shared_bytes, q);
  }
};

}  // namespace portile::gpu
