#include <portile/kernels/gemm/nt.hpp>

#include <portile/core/numeric/tf32.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// out = a * b^T by fp32 multiply-adds: any size, any pitch, any address. A block computes 128 x 128 results,
/// a thread 8 x 8 of them. Quantised factors are summed without their scales over each scale block, then
/// scaled and added.
template <class A, class B>
struct tiled_product {
  static constexpr int threads = 256, tile = 128, depth = 16, own = 8;
  static constexpr int pitch =
      tile + 4;  ///< of a tile's row in shared memory: 16-byte rows, no bank conflicts
  static constexpr bool quantised = std::is_same_v<A, numeric::e4m3>;
  static constexpr bool e2m1() { return std::is_same_v<B, numeric::e2m1x2>; }
  static constexpr int scale_block() { return e2m1() ? gemm::scale_block_e2m1 : gemm::scale_block; }
  static constexpr std::size_t shared_bytes = 2 * depth * pitch * sizeof(float);

  struct params {
    const A* a;
    const B* b;
    void* out;
    std::int64_t a_stride, b_stride, out_stride;
    std::int64_t m, n, k;
    divider row_tiles;
    std::int64_t tiles;
    scale_reader a_sf, b_sf;
    dtype out_type;
    bool accumulate, truncate, a_aligned, b_aligned;
  };

  /// Eight values of row `row` from channel k on; zeros where there are none.
  template <class T>
  static PORTILE_DEVICE void load_slice(const T* data, std::int64_t stride, bool aligned, bool truncate,
                                        std::int64_t row, std::int64_t rows, std::int64_t k,
                                        std::int64_t channels, float (&v)[own]) {
    PORTILE_UNROLL
    for (int i = 0; i < own; ++i) v[i] = 0.0f;
    if (row >= rows) return;
    const T* start = data + row * stride;
    if (aligned && k + own <= channels) {
      load_values<T, own>(start, k, v);
    } else {
      PORTILE_UNROLL
      for (int i = 0; i < own; ++i)
        if (k + i < channels) v[i] = load_value(start, k + i);
    }
    if constexpr (std::is_same_v<T, float>) {
      PORTILE_UNROLL
      for (int i = 0; i < own; ++i)
        v[i] = truncate ? numeric::to_tf32_truncate(v[i]) : numeric::to_tf32_nearest(v[i]);
    }
  }

  static PORTILE_DEVICE void load_own(const float* from, int place, float (&v)[own]) {
    // A thread's rows (and columns) are four in each half of the tile: that spreads a wave's reads over all
    // banks.
    PORTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const words4 w = load16(from + half * (tile / 2) + place);
      PORTILE_UNROLL
      for (int i = 0; i < 4; ++i) v[half * 4 + i] = numeric::bits_float(w.w[i]);
    }
  }
  /// Row (or column) number of a thread's i-th one within the tile.
  static PORTILE_DEVICE int own_index(int place, int i) { return i / 4 * (tile / 2) + place + i % 4; }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    float* const a_tile = block.template shared<float>();
    float* const b_tile = a_tile + depth * pitch;
    const int row_place = block.thread() / 16 * 4, col_place = block.thread() % 16 * 4;
    // Loading: a thread brings eight channels of one row of each factor.
    const int load_row = block.thread() % tile, load_k = block.thread() / tile * own;

    for (std::int64_t work = block.index(); work < p.tiles; work += block.grid()) {
      const std::int64_t col_tile = p.row_tiles.quotient(work);
      const std::int64_t row0 = (work - col_tile * p.row_tiles.value()) * tile, col0 = col_tile * tile;

      float sum[own][own], part[own][own];
      PORTILE_UNROLL
      for (int i = 0; i < own; ++i) {
        PORTILE_UNROLL
        for (int j = 0; j < own; ++j) sum[i][j] = part[i][j] = 0.0f;
      }
      float a_next[own], b_next[own];
      load_slice(p.a, p.a_stride, p.a_aligned, p.truncate, row0 + load_row, p.m, load_k, p.k, a_next);
      load_slice(p.b, p.b_stride, p.b_aligned, p.truncate, col0 + load_row, p.n, load_k, p.k, b_next);

      for (std::int64_t k0 = 0; k0 < p.k; k0 += depth) {
        PORTILE_UNROLL
        for (int i = 0; i < own; ++i) {
          a_tile[(load_k + i) * pitch + load_row] = a_next[i];
          b_tile[(load_k + i) * pitch + load_row] = b_next[i];
        }
        block.barrier();
        if (k0 + depth < p.k) {  // on their way while this step computes
          load_slice(p.a, p.a_stride, p.a_aligned, p.truncate, row0 + load_row, p.m, k0 + depth + load_k, p.k,
                     a_next);
          load_slice(p.b, p.b_stride, p.b_aligned, p.truncate, col0 + load_row, p.n, k0 + depth + load_k, p.k,
                     b_next);
        }
        PORTILE_UNROLL
        for (int k = 0; k < depth; ++k) {
          float a[own], b[own];
          load_own(a_tile + k * pitch, row_place, a);
          load_own(b_tile + k * pitch, col_place, b);
          PORTILE_UNROLL
          for (int i = 0; i < own; ++i) {
            PORTILE_UNROLL
            for (int j = 0; j < own; ++j) {
              float& to = quantised ? part[i][j] : sum[i][j];
              to = ::fmaf(a[i], b[j], to);
            }
          }
        }
        if constexpr (quantised) {
          const std::int64_t done = k0 + depth;
          if (done % scale_block() == 0 || done >= p.k) {
            promote(p, row0, col0, row_place, col_place, k0, part, sum);
          }
        }
        block.barrier();
      }
      store(p, row0, col0, row_place, col_place, sum);
    }
  }

  /// sum += part * scales of the block that channel k lies in; part = 0.
  static PORTILE_DEVICE void promote(const params& p, std::int64_t row0, std::int64_t col0, int row_place,
                                     int col_place, std::int64_t k, float (&part)[own][own],
                                     float (&sum)[own][own]) {
    float b_sf[own];
    PORTILE_UNROLL
    for (int j = 0; j < own; ++j) {
      const std::int64_t n = col0 + own_index(col_place, j);
      b_sf[j] = n < p.n ? p.b_sf(e2m1() ? n : n / gemm::scale_block, k / scale_block()) : 0.0f;
    }
    PORTILE_UNROLL
    for (int i = 0; i < own; ++i) {
      const std::int64_t m = row0 + own_index(row_place, i);
      const float a_sf = m < p.m ? p.a_sf(m, k / gemm::scale_block) : 0.0f;
      PORTILE_UNROLL
      for (int j = 0; j < own; ++j) {
        sum[i][j] = ::fmaf(part[i][j], a_sf * b_sf[j], sum[i][j]);
        part[i][j] = 0.0f;
      }
    }
  }

  static PORTILE_DEVICE void store(const params& p, std::int64_t row0, std::int64_t col0, int row_place,
                                   int col_place, const float (&sum)[own][own]) {
    PORTILE_UNROLL
    for (int i = 0; i < own; ++i) {
      const std::int64_t m = row0 + own_index(row_place, i);
      if (m >= p.m) continue;
      PORTILE_UNROLL
      for (int j = 0; j < own; ++j) {
        const std::int64_t n = col0 + own_index(col_place, j);
        if (n >= p.n) continue;
        const std::int64_t at = m * p.out_stride + n;
        if (p.out_type == dtype::f32) {
          float& to = static_cast<float*>(p.out)[at];
          to = p.accumulate ? sum[i][j] + to : sum[i][j];
        } else {
          numeric::bf16& to = static_cast<numeric::bf16*>(p.out)[at];
          to = numeric::to_bf16(p.accumulate ? sum[i][j] + numeric::to_float(to) : sum[i][j]);
        }
      }
    }
  }
};

struct nt_simt {
  static void launch(const context& c, const gemm::nt& p) {
    switch (p.a.dtype) {
      case dtype::bf16:
        return typed<numeric::bf16, numeric::bf16>(c, p);
      case dtype::f32:
        return typed<float, float>(c, p);
      case dtype::e4m3:
        return p.b.dtype == dtype::e4m3 ? typed<numeric::e4m3, numeric::e4m3>(c, p)
                                        : typed<numeric::e4m3, numeric::e2m1x2>(c, p);
      default:
        throw error(status_code::internal, "no code for dtype " + std::string(to_string(p.a.dtype)));
    }
  }

 private:
  template <class A, class B>
  static void typed(const context& c, const gemm::nt& p) {
    using kernel = tiled_product<A, B>;
    typename kernel::params q{};
    q.m = p.out.extent(0);
    q.n = p.out.extent(1);
    q.k = p.a.extent(1);
    if (q.m == 0 || q.n == 0 || (q.k == 0 && p.accumulate)) return;
    q.a = static_cast<const A*>(p.a.data);
    q.b = static_cast<const B*>(p.b.data);
    q.out = p.out.data;
    q.a_stride = p.a.stride(0);
    q.b_stride = p.b.stride(0);
    q.out_stride = p.out.stride(0);
    const std::int64_t row_tiles = numeric::ceil_div(q.m, kernel::tile);
    q.tiles = row_tiles * numeric::ceil_div(q.n, kernel::tile);
    q.row_tiles = divider(row_tiles, q.tiles);
    if (p.a_sf) q.a_sf = scale_reader(p.a_sf, false);
    if (p.b_sf) q.b_sf = scale_reader(p.b_sf, false);
    q.out_type = p.out.dtype;
    q.accumulate = p.accumulate;
    q.truncate = p.tf32_rounding == "truncate";
    q.a_aligned = rows_aligned(p.a, load_alignment<A, kernel::own>());
    q.b_aligned = rows_aligned(p.b, load_alignment<B, kernel::own>());
    gpu::launch<kernel>(c, q.tiles, kernel::shared_bytes, q);
  }
};

}  // namespace

extern const portile_implementation gemm_nt_simt;
const portile_implementation gemm_nt_simt = make_simt<gemm::nt, nt_simt>();

}  // namespace portile::gpu
