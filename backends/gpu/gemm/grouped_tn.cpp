#include "backends/gpu/gemm/grouped_tn.hpp"

namespace portile::gpu {
namespace {

template <class T>
struct tn_product : tn_operands<T> {
  using shape = tile<tile_columns>;
  using sums = typename shape::sums;
  static constexpr std::int64_t alignment = load_alignment<T, slice_values>();

  /// The tile at (row0, col0) over the rows first .. last - 1 for which own(row).
  template <class Block, class F>
  PORTILE_DEVICE void operator()(const Block& block, std::int64_t row0, std::int64_t col0, std::int64_t first,
                                 std::int64_t last, F own, sums& sum) const {
    float* const a_tile = block.template shared<float>();
    float* const b_tile = a_tile + shape::depth * shape::a_pitch;
    // Loading: a thread brings eight columns of one row of each factor.
    constexpr int a_lanes = shape::rows / slice_values, b_lanes = shape::cols / slice_values;
    const int a_row = block.thread() / a_lanes, a_col = block.thread() % a_lanes * slice_values;
    const int b_row = block.thread() / b_lanes, b_col = block.thread() % b_lanes * slice_values;

    sum.clear();
    float a_next[slice_values] = {}, b_next[slice_values] = {};
    const auto load = [&](std::int64_t k0) {
      const auto slice = [&](const T* data, std::int64_t stride, bool aligned, std::int64_t row,
                             std::int64_t col, std::int64_t cols, float(&v)[slice_values]) {
        const bool there = row < last && own(row);
        load_slice(data, stride, aligned, this->truncate, row, there ? last : row, col, cols, v);
      };
      slice(this->a, this->a_stride, this->a_aligned, k0 + a_row, row0 + a_col, this->m, a_next);
      if (b_row < shape::depth)
        slice(this->b, this->b_stride, this->b_aligned, k0 + b_row, col0 + b_col, this->n, b_next);
    };
    load(first);
    for (std::int64_t k0 = first; k0 < last; k0 += shape::depth) {
      store_values<float, slice_values>(a_tile + a_row * shape::a_pitch + a_col, 0, a_next);
      if (b_row < shape::depth)
        store_values<float, slice_values>(b_tile + b_row * shape::b_pitch + b_col, 0, b_next);
      block.barrier();
      if (k0 + shape::depth < last) load(k0 + shape::depth);  // on its way while this step computes
      shape::multiply(a_tile, b_tile, block.thread(), sum);
      block.barrier();
    }
  }
};

}  // namespace

extern const portile_implementation gemm_grouped_tn_simt;
const portile_implementation gemm_grouped_tn_simt = make_simt<gemm::grouped_tn, grouped_tn_by<tn_product>>();

}  // namespace portile::gpu
