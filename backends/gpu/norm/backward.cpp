#include <portile/kernels/norm/backward.hpp>

#include "backends/gpu/column_sums.hpp"
#include "backends/gpu/rows.hpp"

namespace portile::gpu {
namespace {

template <class T>
struct norm_backward_params {
  row_pointers<const T> out_grad, x, residual_out_grad;
  row_pointers<T> x_grad;
  const T* weight;
  const float* rstd;
  float* partial;  ///< parts x hidden, or null
  std::int64_t rows, hidden, parts;
  float out_scale;
};

/// A block takes a run of rows, one after the other, and keeps their share of the weight's gradient in
/// registers.
template <class T, int num_threads, int chunks>
struct norm_backward_chunks {
  static constexpr int threads = num_threads;
  static constexpr std::size_t scratch_bytes = 2 * 16 * sizeof(float);
  using params = norm_backward_params<T>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* scratch = block.template shared<float>();
    auto* weights = block.template shared<unsigned char>(scratch_bytes);
    // Each thread reads back what it wrote itself.
    if (p.weight) {
      PORTILE_UNROLL
      for (int c = 0; c < chunks; ++c)
        if (first(block, c) < p.hidden)
          raw8<T>::template load<true>(p.weight + first(block, c))
              .template store<true>(reinterpret_cast<T*>(weights) + first(block, c));
    }
    int turn = 0;
    for (std::int64_t part = block.index(); part < p.parts; part += block.grid()) {
      float sums[chunks][8] = {};
      const std::int64_t end = p.rows * (part + 1) / p.parts;
      for (std::int64_t row = p.rows * part / p.parts; row < end; ++row) {
        raw8<T> grad[chunks], x[chunks], residual[chunks];
        load(block, p, p.out_grad, row, grad);
        load(block, p, p.x, row, x);
        if (p.residual_out_grad) load(block, p, p.residual_out_grad, row, residual);
        const float r = p.rstd[row];
        float sum[1] = {};
        PORTILE_UNROLL
        for (int c = 0; c < chunks; ++c) {
          const raw8<T> w = weight(block, p, weights, c);
          PORTILE_UNROLL
          for (int i = 0; i < 8; ++i) {
            const float xh = x[c][i] * r, d = grad[c][i] * p.out_scale;
            sums[c][i] = ::fmaf(xh, d, sums[c][i]);
            sum[0] = ::fmaf(xh, p.weight ? d * w[i] : d, sum[0]);
          }
        }
        reduce_sums<true>(block, sum, scratch + turn * 16);
        turn ^= 1;
        const float m = sum[0] / static_cast<float>(p.hidden);
        T* to = p.x_grad(0, row);
        PORTILE_UNROLL
        for (int c = 0; c < chunks; ++c) {
          if (first(block, c) >= p.hidden) continue;
          const raw8<T> w = weight(block, p, weights, c);
          float g[8];
          PORTILE_UNROLL
          for (int i = 0; i < 8; ++i) {
            const float d = grad[c][i] * p.out_scale;
            g[i] = ((p.weight ? d * w[i] : d) - x[c][i] * r * m) * r;
            if (p.residual_out_grad) g[i] += residual[c][i];
          }
          raw8<T>::from(g).template store<true>(to + first(block, c));
        }
      }
      if (!p.partial) continue;
      PORTILE_UNROLL
      for (int c = 0; c < chunks; ++c)
        if (first(block, c) < p.hidden)
          raw8<float>::from(sums[c]).template store<true>(p.partial + part * p.hidden + first(block, c));
    }
  }

 private:
  template <class Block>
  static PORTILE_DEVICE std::int64_t first(const Block& block, int c) {
    return std::int64_t{c * threads + block.thread()} * 8;
  }
  template <class Block>
  static PORTILE_DEVICE void load(const Block& block, const params& p, const row_pointers<const T>& from,
                                  std::int64_t row, raw8<T> (&v)[chunks]) {
    const T* at = from(0, row);
    PORTILE_UNROLL
    for (int c = 0; c < chunks; ++c)
      v[c] =
          first(block, c) < p.hidden ? raw8<T>::template load<true>(at + first(block, c)) : raw8<T>::zero();
  }
  template <class Block>
  static PORTILE_DEVICE raw8<T> weight(const Block& block, const params& p, const unsigned char* weights,
                                       int c) {
    if (!p.weight || first(block, c) >= p.hidden) return raw8<T>::zero();
    return raw8<T>::template load<true>(reinterpret_cast<const T*>(weights) + first(block, c));
  }
};

/// Any alignment: value by value, read twice.
template <class T>
struct norm_backward_values {
  static constexpr int threads = 512, each = 16;  // at most 8192 columns
  static constexpr std::size_t scratch_bytes = 2 * 16 * sizeof(float);
  using params = norm_backward_params<T>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    auto* scratch = block.template shared<float>();
    int turn = 0;
    for (std::int64_t part = block.index(); part < p.parts; part += block.grid()) {
      float sums[each] = {};
      const std::int64_t end = p.rows * (part + 1) / p.parts;
      for (std::int64_t row = p.rows * part / p.parts; row < end; ++row) {
        const T *grad = p.out_grad(0, row), *x = p.x(0, row);
        const float r = p.rstd[row];
        float sum[1] = {};
        PORTILE_UNROLL
        for (int k = 0; k < each; ++k) {
          const std::int64_t j = k * threads + block.thread();
          if (j >= p.hidden) continue;
          const float xh = load_value(x, j) * r, d = load_value(grad, j) * p.out_scale;
          sums[k] = ::fmaf(xh, d, sums[k]);
          sum[0] = ::fmaf(xh, p.weight ? d * load_value(p.weight, j) : d, sum[0]);
        }
        reduce_sums<true>(block, sum, scratch + turn * 16);
        turn ^= 1;
        const float m = sum[0] / static_cast<float>(p.hidden);
        for (std::int64_t j = block.thread(); j < p.hidden; j += threads) {
          const float d = load_value(grad, j) * p.out_scale;
          float g = ((p.weight ? d * load_value(p.weight, j) : d) - load_value(x, j) * r * m) * r;
          if (p.residual_out_grad) g += load_value(p.residual_out_grad(0, row), j);
          store_value(p.x_grad(0, row), j, g);
        }
      }
      if (!p.partial) continue;
      PORTILE_UNROLL
      for (int k = 0; k < each; ++k) {
        const std::int64_t j = k * threads + block.thread();
        if (j < p.hidden) p.partial[part * p.hidden + j] = sums[k];
      }
    }
  }
};

struct backward_simt {
  static bool by_chunks(const norm::backward& p) {
    return all_rows_aligned(p.out_grad, p.x, p.weight, p.residual_out_grad, p.x_grad);
  }
  /// Threads of a block; the chunks a thread then needs are one or two.
  static std::int64_t threads(const norm::backward& p) {
    const std::int64_t hidden = p.x.extent(1);
    return !by_chunks(p) || hidden > 2048 ? 512 : hidden > 1024 ? 256 : 128;
  }
  /// Partial rows: 1024 threads for each multiprocessor of the H200, whatever the device.
  static std::int64_t parts(const norm::backward& p) {
    const std::int64_t rows = p.x.extent(0);
    return p.weight_grad.defined() ? std::min<std::int64_t>(rows, 132 * 1024 / threads(p)) : rows;
  }
  static std::uint64_t workspace(const portile_device_info&, const norm::backward& p) {
    return p.weight_grad.defined() ? static_cast<std::uint64_t>(parts(p) * p.x.extent(1)) * sizeof(float) : 0;
  }
  static void launch(const context& c, const norm::backward& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto type) {
      using T = decltype(type);
      const norm_backward_params<T> k{
          row_pointers<const T>(p.out_grad),
          row_pointers<const T>(p.x),
          row_pointers<const T>(p.residual_out_grad),
          row_pointers<T>(p.x_grad),
          p.weight.defined() ? static_cast<const T*>(p.weight.data) : nullptr,
          static_cast<const float*>(p.rstd.data),
          p.weight_grad.defined() ? static_cast<float*>(c.call.workspace) : nullptr,
          p.x.extent(0),
          p.x.extent(1),
          parts(p),
          static_cast<float>(p.out_scale)};
      if (!by_chunks(p))
        start<norm_backward_values<T>>(c, k, 0);
      else if (k.hidden <= 1024)
        start<norm_backward_chunks<T, 128, 1>>(c, k, sizeof(T));
      else if (k.hidden <= 2048)
        start<norm_backward_chunks<T, 256, 1>>(c, k, sizeof(T));
      else if (k.hidden <= 4096)
        start<norm_backward_chunks<T, 512, 1>>(c, k, sizeof(T));
      else
        start<norm_backward_chunks<T, 512, 2>>(c, k, sizeof(T));
      if (!p.weight_grad.defined() || (k.rows == 0 && p.accumulate)) return;
      visit<float, numeric::bf16>(p.weight_grad.dtype, [&](auto grad) {
        add_partial_rows<decltype(grad)>::launch(c, partial_rows(k.partial, k.hidden, k.parts, k.hidden), 1,
                                                 0, static_cast<decltype(grad)*>(p.weight_grad.data), 0,
                                                 p.accumulate);
      });
    });
  }

 private:
  template <class K>
  static void start(const context& c, const typename K::params& k, std::size_t weight_bytes) {
    gpu::launch<K>(c, k.parts, K::scratch_bytes + weight_bytes * static_cast<std::size_t>(k.hidden), k);
  }
};

}  // namespace

extern const portile_implementation norm_backward_simt;
const portile_implementation norm_backward_simt = make_simt<norm::backward, backward_simt>();

}  // namespace portile::gpu
