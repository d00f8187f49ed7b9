#pragma once
// The RMSNorm of a row in registers, for norm.forward and its fusion with a cast: the same bits in both.
#include "backends/gpu/reduce.hpp"
#include "backends/gpu/rows.hpp"

namespace portile::gpu {

template <class T>
struct rms_norm_params {
  row_pointers<const T> x, residual;
  row_pointers<T> residual_out;
  const T* weight = nullptr;
  float* rstd = nullptr;
  std::int64_t rstd_batch = 0, rstd_row = 0;
  std::int64_t rows = 0, hidden = 0;
  divider tokens;
  float eps = 0, out_scale = 1;

  template <class P>
  explicit rms_norm_params(const P& p) : x(p.x), residual(p.residual), residual_out(p.residual_out) {
    if (p.weight.defined()) weight = static_cast<const T*>(p.weight.data);
    if (p.rstd.defined()) {
      rstd = static_cast<float*>(p.rstd.data);
      rstd_batch = p.rstd.rank == 2 ? p.rstd.stride(0) : 0;
      rstd_row = p.rstd.stride(p.rstd.rank - 1);
    }
    const std::int64_t per_batch = p.x.extent(p.x.rank - 2);
    rows = (p.x.rank == 3 ? p.x.extent(0) : 1) * per_batch;
    hidden = p.x.extent(p.x.rank - 1);
    if (rows > 0) tokens = divider(per_batch, rows);
    eps = static_cast<float>(p.eps);
    out_scale = static_cast<float>(p.out_scale);
  }
  template <class P>
  static bool aligned(const P& p) {
    return all_rows_aligned(p.x, p.residual, p.weight, p.residual_out);
  }
};

/// How a row is spread: chunk c of eight values is that of lane `c mod lanes`, by a wave or by the block. The
/// host picks by the width alone, so that the order of the sum depends on nothing else.
template <class T, bool whole_block, bool aligned>
struct rms_norm_row {
  static constexpr int threads = 256, chunks = 4;
  static constexpr bool narrow = sizeof(T) == 2;
  static constexpr std::size_t scratch_bytes = 2 * threads / 32 * sizeof(double);
  static std::int64_t wave_width(std::int64_t wave) { return wave * chunks * 8; }

  template <class Block>
  static constexpr int lanes() {
    return whole_block ? threads : Block::wave_size;
  }
  template <class Block>
  static PORTILE_DEVICE int lane(const Block& block) {
    return whole_block ? block.thread() : block.lane();
  }
  template <class Block>
  static PORTILE_DEVICE std::int64_t first_value(const Block& block, int c) {
    return std::int64_t{c * lanes<Block>() + lane(block)} * 8;
  }

  raw8<T> value[chunks];  ///< x with the residual; zero where there is none
  float rstd;

  /// Stores residual_out and rstd on the way.
  template <class Block>
  PORTILE_DEVICE rms_norm_row(const Block& block, const rms_norm_params<T>& p, std::int64_t b,
                              std::int64_t t) {
    auto* scratch = block.template shared<double>();
    const T* x = p.x(b, t);
    PORTILE_UNROLL
    for (int c = 0; c < chunks; ++c) {
      const std::int64_t j = first_value(block, c);
      value[c] = j < p.hidden ? raw8<T>::template load<aligned>(x + j) : raw8<T>::zero();
    }
    if (p.residual) {
      raw8<T> residual[chunks];
      const T* r = p.residual(b, t);
      PORTILE_UNROLL
      for (int c = 0; c < chunks; ++c) {
        const std::int64_t j = first_value(block, c);
        residual[c] = j < p.hidden ? raw8<T>::template load<aligned>(r + j) : raw8<T>::zero();
      }
      PORTILE_UNROLL
      for (int c = 0; c < chunks; ++c) {
        float n[8];
        PORTILE_UNROLL
        for (int i = 0; i < 8; ++i) n[i] = value[c][i] + residual[c][i];
        value[c] = raw8<T>::from(n);
      }
    }
    if (p.residual_out) {
      T* to = p.residual_out(b, t);
      PORTILE_UNROLL
      for (int c = 0; c < chunks; ++c) {
        const std::int64_t j = first_value(block, c);
        if (j < p.hidden) value[c].template store<aligned>(to + j);
      }
    }

    float sum[1] = {};
    PORTILE_UNROLL
    for (int c = 0; c < chunks; ++c) {
      PORTILE_UNROLL
      for (int i = 0; i < 8; ++i) sum[0] = ::fmaf(value[c][i], value[c][i], sum[0]);
    }
    reduce_sums<whole_block>(block, sum, reinterpret_cast<float*>(scratch));
    float r = 1.0f / ::sqrtf(sum[0] / static_cast<float>(p.hidden) + p.eps);
    if (!safe_sum_of_squares(sum[0])) {
      double exact[1] = {};
      PORTILE_UNROLL
      for (int c = 0; c < chunks; ++c) {
        PORTILE_UNROLL
        for (int i = 0; i < 8; ++i)
          exact[0] += static_cast<double>(value[c][i]) * static_cast<double>(value[c][i]);
      }
      if constexpr (whole_block) block.barrier();
      reduce_sums<whole_block>(block, exact, scratch);
      r = static_cast<float>(1 /
                             ::sqrt(exact[0] / static_cast<double>(p.hidden) + static_cast<double>(p.eps)));
    }
    if (p.rstd && lane(block) == 0) p.rstd[b * p.rstd_batch + t * p.rstd_row] = r;
    rstd = r;
  }

  /// The results of chunk c, rounded to T. The weights come from the cache: the blocks before have read them.
  template <class Block>
  PORTILE_DEVICE raw8<T> normalised(const Block& block, const rms_norm_params<T>& p, int c) const {
    const std::int64_t j = first_value(block, c);
    raw8<T> weight = raw8<T>::zero();
    if (p.weight && j < p.hidden) weight = raw8<T>::template load<aligned>(p.weight + j);
    float v[8];
    PORTILE_UNROLL
    for (int i = 0; i < 8; ++i)
      v[i] = (value[c][i] * rstd) * (p.weight ? weight[i] * p.out_scale : p.out_scale);
    return raw8<T>::from(v);
  }

  /// Calls f(b, t) for the rows of the block's waves, or of the block.
  template <class Block, class F>
  static PORTILE_DEVICE void for_each_row(const Block& block, const rms_norm_params<T>& p, F f) {
    constexpr int rows = threads / lanes<Block>();
    for (std::int64_t row = block.index() * rows + (whole_block ? 0 : block.wave()); row < p.rows;
         row += block.grid() * rows) {
      const std::int64_t b = p.tokens.quotient(row);
      f(b, row - b * p.tokens.value());
      if constexpr (whole_block) block.barrier();
    }
  }
};

/// Starts K<T, whole_block, aligned> on the rows; K has the members of rms_norm_row.
template <template <class, bool, bool> class K, class T, class Params>
void launch_rows(const context& c, const Params& k, bool aligned) {
  const std::int64_t wave = c.call.device->wave_size;
  const auto start = [&]<class Kernel>(std::int64_t rows) {
    gpu::launch<Kernel>(c, numeric::ceil_div(k.norm.rows, rows), Kernel::row::scratch_bytes, k);
  };
  if (k.norm.hidden <= K<T, false, true>::row::wave_width(wave)) {
    const std::int64_t rows = K<T, false, true>::threads / wave;
    aligned ? start.template operator()<K<T, false, true>>(rows)
            : start.template operator()<K<T, false, false>>(rows);
  } else {
    aligned ? start.template operator()<K<T, true, true>>(1)
            : start.template operator()<K<T, true, false>>(1);
  }
}

}  // namespace portile::gpu
