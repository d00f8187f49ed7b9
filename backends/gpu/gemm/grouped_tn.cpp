#include <portile/kernels/gemm/grouped_tn.hpp>

#include "backends/gpu/gemm/experts.hpp"

namespace portile::gpu {
namespace {

/// out[e] = a_e^T * b_e, a tile a block: the rows of the expert are the channels of the tile's product.
template <class T>
struct transposed_product {
  using shape = tile<tile_columns>;
  static constexpr int threads = shape::threads;
  static constexpr std::size_t flag_at = shape::shared_bytes, shared_bytes = flag_at + 16;

  struct params {
    const T *a, *b;
    float* out;
    std::int64_t a_stride, b_stride, out_batch, out_stride;
    std::int64_t m, n;
    expert_rows rows_of;
    divider col_tiles, row_tiles;
    std::int64_t tiles;
    bool accumulate, truncate, a_aligned, b_aligned;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    float* const a_tile = block.template shared<float>();
    float* const b_tile = a_tile + shape::depth * shape::a_pitch;
    auto* const flag = block.template shared<std::uint32_t>(flag_at);
    // Loading: a thread brings eight columns of one row of each factor.
    constexpr int a_lanes = shape::rows / slice_values, b_lanes = shape::cols / slice_values;
    const int a_row = block.thread() / a_lanes, a_col = block.thread() % a_lanes * slice_values;
    const int b_row = block.thread() / b_lanes, b_col = block.thread() % b_lanes * slice_values;

    for (std::int64_t work = block.index(); work < p.tiles; work += block.grid()) {
      const std::int64_t in_all = p.col_tiles.quotient(work);
      const std::int64_t col0 = (work - in_all * p.col_tiles.value()) * shape::cols;
      const std::int64_t e = p.row_tiles.quotient(in_all);
      const std::int64_t row0 = (in_all - e * p.row_tiles.value()) * shape::rows;
      const expert_rows::range mine = p.rows_of(e);
      const bool shared = p.rows_of.shares(block, e, mine, flag);
      if (block.thread() == 0) *flag = 0;

      typename shape::sums sum;
      sum.clear();
      float a_next[slice_values] = {}, b_next[slice_values] = {};
      bool any = false;
      const auto load = [&](std::int64_t k0) {
        const auto slice = [&](const T* data, std::int64_t stride, bool aligned, std::int64_t row,
                               std::int64_t col, std::int64_t cols, float(&v)[slice_values]) {
          // Zero times zero adds nothing: a row that another expert has.
          const bool own = row < mine.end && !(shared && p.rows_of.taken_by_earlier(e, row));
          any |= own;
          load_slice(data, stride, aligned, p.truncate, row, own ? mine.end : row, col, cols, v);
        };
        slice(p.a, p.a_stride, p.a_aligned, k0 + a_row, row0 + a_col, p.m, a_next);
        if (b_row < shape::depth) slice(p.b, p.b_stride, p.b_aligned, k0 + b_row, col0 + b_col, p.n, b_next);
      };
      load(mine.begin);
      for (std::int64_t k0 = mine.begin; k0 < mine.end; k0 += shape::depth) {
        put(a_tile + a_row * shape::a_pitch + a_col, a_next);
        if (b_row < shape::depth) put(b_tile + b_row * shape::b_pitch + b_col, b_next);
        block.barrier();
        if (k0 + shape::depth < mine.end) load(k0 + shape::depth);  // on its way while this step computes
        shape::multiply(a_tile, b_tile, block.thread(), sum);
        block.barrier();
      }
      block.barrier();
      if (any) block.atomic_or(flag, 1u);
      block.barrier();
      if (*flag != 0 || !p.accumulate) {
        const tile_result out{p.out + e * p.out_batch, p.out_stride, dtype::f32, p.accumulate};
        shape::each(block.thread(), row0, p.m, col0, p.n, sum,
                    [&](std::int64_t m, std::int64_t n, float v) { out.store(m, n, v); });
      }
      block.barrier();
    }
  }

 private:
  static PORTILE_DEVICE void put(float* to, const float (&v)[slice_values]) {
    store_values<float, slice_values>(to, 0, v);
  }
};

struct grouped_tn_simt {
  static void launch(const context& c, const gemm::grouped_tn& p) {
    visit<numeric::bf16, float>(p.a.dtype, [&](auto t) { typed<decltype(t)>(c, p); });
  }

 private:
  template <class T>
  static void typed(const context& c, const gemm::grouped_tn& p) {
    using kernel = transposed_product<T>;
    using shape = typename kernel::shape;
    typename kernel::params q{};
    const std::int64_t experts = p.out.extent(0);
    q.rows_of =
        make_expert_rows(p.expert_start, p.expert_end, p.num_live_per_expert, {}, experts, p.a.extent(0));
    report_segments(c, q.rows_of);
    q.m = p.out.extent(1);
    q.n = p.out.extent(2);
    if (experts == 0 || q.m == 0 || q.n == 0) return;
    q.a = static_cast<const T*>(p.a.data);
    q.b = static_cast<const T*>(p.b.data);
    q.out = static_cast<float*>(p.out.data);
    q.a_stride = p.a.stride(0);
    q.b_stride = p.b.stride(0);
    q.out_batch = p.out.stride(0);
    q.out_stride = p.out.stride(1);
    const std::int64_t row_tiles = numeric::ceil_div(q.m, std::int64_t{shape::rows}),
                       col_tiles = numeric::ceil_div(q.n, std::int64_t{shape::cols});
    q.tiles = experts * row_tiles * col_tiles;
    q.col_tiles = divider(col_tiles, q.tiles);
    q.row_tiles = divider(row_tiles, q.tiles);
    q.accumulate = p.accumulate;
    q.truncate = p.tf32_rounding == "truncate";
    q.a_aligned = rows_aligned(p.a, load_alignment<T, slice_values>());
    q.b_aligned = rows_aligned(p.b, load_alignment<T, slice_values>());
    gpu::launch<kernel>(c, q.tiles, kernel::shared_bytes, q);
  }
};

}  // namespace

extern const portile_implementation gemm_grouped_tn_simt;
const portile_implementation gemm_grouped_tn_simt = make_simt<gemm::grouped_tn, grouped_tn_simt>();

}  // namespace portile::gpu
