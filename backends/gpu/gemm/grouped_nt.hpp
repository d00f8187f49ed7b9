#pragma once
// gemm.grouped_nt with any way to compute a tile's product.
#include <portile/kernels/gemm/grouped_nt.hpp>

#include "backends/gpu/gemm/experts.hpp"

namespace portile::gpu {

/// The tiles of all experts' rows in order, those of a row of tiles one after the other. Only the device
/// knows how many there are: a block finds its own and stops past the last.
template <class Product>
struct grouped_product {
  using shape = typename Product::shape;
  static constexpr int threads = shape::threads;
  // Behind the tile: the sums of the waves and the expert found, a flag, and who owns each row.
  static constexpr std::size_t sums_at = shape::shared_bytes, flag_at = sums_at + 128,
                               owned_at = flag_at + 16;
  static constexpr std::size_t shared_bytes = owned_at + shape::rows * sizeof(std::uint32_t);

  struct params {
    Product product;  ///< of the first expert; m is unused
    tile_result out;
    expert_rows rows_of;
    std::int64_t a_batch, b_batch, a_sf_bytes, b_sf_bytes, out_bytes;  ///< from expert to expert
    divider col_tiles;
  };
  struct place {
    std::int64_t expert = -1, row_tile = 0;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* const flag = block.template shared<std::uint32_t>(flag_at);
    auto* const owned = block.template shared<std::uint32_t>(owned_at);
    for (std::int64_t work = block.index();; work += block.grid()) {
      const std::int64_t r = p.col_tiles.quotient(work);
      const std::int64_t col0 = (work - r * p.col_tiles.value()) * shape::cols;
      const place at = find(block, p.rows_of, r);
      if (at.expert < 0) return;

      const std::int64_t e = at.expert;
      const expert_rows::range mine = p.rows_of(e);
      const std::int64_t row0 = mine.begin + at.row_tile * shape::rows;
      const std::int64_t row_end = row0 + shape::rows < mine.end ? row0 + shape::rows : mine.end;
      const bool shared = p.rows_of.shares(block, e, {row0, row_end}, flag);
      if (shared && block.thread() < shape::rows)
        owned[block.thread()] = p.rows_of.taken_by_earlier(e, row0 + block.thread()) ? 0 : 1;

      Product product = p.product;
      product.m = row_end;
      product.a += e * p.a_batch;
      product.b += e * p.b_batch;
      if constexpr (Product::quantised) {
        product.a_sf.data = static_cast<const char*>(product.a_sf.data) + e * p.a_sf_bytes;
        product.b_sf.data = static_cast<const char*>(product.b_sf.data) + e * p.b_sf_bytes;
      }
      typename shape::sums sum;
      block.barrier();
      product(block, row0, col0, sum);
      tile_result out = p.out;
      out.data = static_cast<char*>(out.data) + e * p.out_bytes;
      shape::each(block.thread(), row0, row_end, col0, product.n, sum,
                  [&](std::int64_t m, std::int64_t n, float v) {
                    if (!shared || owned[m - row0] != 0) out.store(m, n, v);
                  });
      block.barrier();
    }
  }

 private:
  /// The expert that row tile r, counted over all experts, belongs to; -1 past the last.
  template <class Block>
  static PORTILE_DEVICE place find(const Block& block, const expert_rows& rows_of, std::int64_t r) {
    auto* const sums = block.template shared<std::int64_t>(sums_at);
    auto* const found = sums + Block::num_waves;
    std::int64_t before = 0;
    for (std::int64_t base = 0; base < rows_of.experts; base += threads) {
      const std::int64_t e = base + block.thread();
      std::int64_t tiles = 0;
      if (e < rows_of.experts) {
        const expert_rows::range mine = rows_of(e);
        tiles = (mine.end - mine.begin + shape::rows - 1) / shape::rows;
      }
      const std::int64_t in_wave = inclusive_sum_wave(block, tiles);
      if (block.lane() == Block::wave_size - 1) sums[block.wave()] = in_wave;
      if (block.thread() == 0) found[0] = -1;
      block.barrier();
      std::int64_t mine = before + in_wave - tiles;
      for (int w = 0; w < Block::num_waves; ++w) {
        if (w < block.wave()) mine += sums[w];
        before += sums[w];
      }
      if (r >= mine && r < mine + tiles) {
        found[0] = e;
        found[1] = r - mine;
      }
      block.barrier();
      const place at{found[0], found[1]};
      block.barrier();
      if (at.expert >= 0) return at;
    }
    return {};
  }
};

/// Product<A, B> computes a tile.
template <template <class, class> class Product>
struct grouped_nt_by {
  static void launch(const context& c, const gemm::grouped_nt& p) {
    visit_factors(p, [&](auto a, auto b) { start<Product<decltype(a), decltype(b)>>(c, p); });
  }

 private:
  template <class T>
  static void start(const context& c, const gemm::grouped_nt& p) {
    using kernel = grouped_product<T>;
    using shape = typename kernel::shape;
    const bool masked = p.a.rank == 3;
    const std::int64_t experts = p.b.extent(0), rows = p.a.extent(masked ? 1 : 0);
    typename kernel::params q{};
    q.rows_of =
        make_expert_rows(p.expert_start, p.expert_end, p.num_live_per_expert, p.masked_m, experts, rows);
    report_segments(c, q.rows_of);
    q.product = make_product<T>(p);
    if (rows == 0 || q.product.n == 0 || (q.product.k == 0 && p.accumulate)) return;
    q.out = {p.out.data, p.out.stride(p.out.rank - 2), p.out.dtype, p.accumulate};
    const auto batch = [](const tensor& t) { return t.defined() && t.rank == 3 ? t.stride(0) : 0; };
    q.a_batch = batch(p.a);
    q.b_batch = batch(p.b);
    q.a_sf_bytes = p.a_sf.defined() ? batch(p.a_sf) * size_of(p.a_sf.dtype) : 0;
    q.b_sf_bytes = p.b_sf.defined() ? batch(p.b_sf) * size_of(p.b_sf.dtype) : 0;
    q.out_bytes = batch(p.out) * size_of(p.out.dtype);
    // As many row tiles as legal segments have at most; a capped grid, or overlapping ones, loop.
    const std::int64_t whole = numeric::ceil_div(rows, std::int64_t{shape::rows});
    const std::int64_t row_tiles = masked ? experts * whole : whole + experts;
    const std::int64_t col_tiles = numeric::ceil_div(q.product.n, std::int64_t{shape::cols});
    q.col_tiles = divider(col_tiles, std::int64_t{1} << 62);
    gpu::launch<kernel>(c, row_tiles * col_tiles, kernel::shared_bytes, q);
  }
};

}  // namespace portile::gpu
