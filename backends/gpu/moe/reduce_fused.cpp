#include <portile/kernels/moe/reduce_fused.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

template <class In, class Out>
struct reduce_params {
  const In* x;
  Out* out;
  std::int64_t x_stride, out_stride;
  const float *x_sf, *weights, *sf;
  const std::int32_t* positions;
  std::int64_t weights_stride, positions_stride;
  std::int64_t rows, k, hidden;
  divider row_units;
  std::int64_t units;  ///< of work, in all
  std::uint64_t* trap;

  /// Row and factor of a slot; -1 for none.
  PORTILE_DEVICE std::int64_t row_of(std::int64_t t, std::int64_t j, float& factor) const {
    const std::int64_t pos = positions[t * positions_stride + j];
    factor = weights ? weights[t * weights_stride + j] : 1.0f;
    if (pos < 0 || pos >= rows) return -1;
    if (x_sf) factor = factor * x_sf[pos];
    return pos;
  }
  PORTILE_DEVICE void report(std::int64_t t) const {
    for (std::int64_t j = 0; j < k; ++j)
      if (positions[t * positions_stride + j] >= rows) raise_trap(trap, 0, t * k + j);
  }
};

/// Aligned rows: 16 bytes of x a thread; the rows of up to `batch` slots are on their way at once.
template <class In, class Out>
struct reduce_aligned {
  static constexpr int threads = 256, own = 16 / sizeof(In), batch = 8;
  using params = reduce_params<In, Out>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const float sf = p.sf ? *p.sf : 1.0f;
    for (std::int64_t i = block.index() * threads + block.thread(); i < p.units;
         i += block.grid() * threads) {
      const std::int64_t t = p.row_units.quotient(i), column = (i - t * p.row_units.value()) * own;
      float acc[own] = {};
      for (std::int64_t j = 0; j < p.k; j += batch) {
        std::int64_t row[batch];
        float factor[batch];
        PORTILE_UNROLL
        for (int u = 0; u < batch; ++u) row[u] = j + u < p.k ? p.row_of(t, j + u, factor[u]) : -1;
        words4 w[batch];
        PORTILE_UNROLL
        for (int u = 0; u < batch; ++u)
          if (row[u] >= 0) w[u] = load16(p.x + row[u] * p.x_stride + column);
        PORTILE_UNROLL
        for (int u = 0; u < batch; ++u) {
          if (row[u] < 0) continue;
          PORTILE_UNROLL
          for (int v = 0; v < own; ++v) acc[v] = ::fmaf(value(w[u], v), factor[u], acc[v]);
        }
      }
      if (column == 0) p.report(t);
      Out* const out = p.out + t * p.out_stride;
      if constexpr (std::is_same_v<Out, numeric::e4m3>) {
        if (p.sf) {
          PORTILE_UNROLL
          for (int v = 0; v < own; ++v) acc[v] = acc[v] * sf;
        }
        std::uint32_t codes[own / 4];
        PORTILE_UNROLL
        for (int v = 0; v < own; v += 4) codes[v / 4] = to_e4m3x4(acc[v], acc[v + 1], acc[v + 2], acc[v + 3]);
        if constexpr (own == 8)
          store8(out + column, {{codes[0], codes[1]}});
        else
          store4(out + column, codes[0]);
      } else {
        store_values<Out, own>(out, column, acc);
      }
    }
  }

 private:
  static PORTILE_DEVICE float value(const words4& w, int v) {
    if constexpr (std::is_same_v<In, float>)
      return numeric::bits_float(w.w[v]);
    else
      return v % 2 ? bf16_high(w.w[v / 2]) : bf16_low(w.w[v / 2]);
  }
};

/// Any addresses: a thread a column.
template <class In, class Out>
struct reduce_columns {
  static constexpr int threads = 256;
  using params = reduce_params<In, Out>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t i = block.index() * threads + block.thread(); i < p.units;
         i += block.grid() * threads) {
      const std::int64_t t = p.row_units.quotient(i), column = i - t * p.row_units.value();
      float acc = 0.0f;
      for (std::int64_t j = 0; j < p.k && column < p.hidden; ++j) {
        float factor;
        const std::int64_t row = p.row_of(t, j, factor);
        if (row >= 0) acc = ::fmaf(load_value(p.x + row * p.x_stride, column), factor, acc);
      }
      if (column == 0) p.report(t);
      if (column >= p.hidden) continue;
      if (p.sf) acc = acc * *p.sf;
      Out* const out = p.out + t * p.out_stride;
      if constexpr (std::is_same_v<Out, numeric::e4m3>)
        out[column] = {static_cast<std::uint8_t>(to_e4m3x2(acc, 0.0f))};
      else
        store_value(out, column, acc);
    }
  }
};

struct reduce_fused_simt {
  static void launch(const context& c, const moe::reduce_fused& p) {
    visit<float, numeric::bf16>(p.x.dtype, [&](auto in) {
      using In = decltype(in);
      if (p.out.dtype == dtype::e4m3)
        typed<In, numeric::e4m3>(c, p);
      else
        typed<In, In>(c, p);
    });
  }

 private:
  template <class In, class Out>
  static void typed(const context& c, const moe::reduce_fused& p) {
    reduce_params<In, Out> q{};
    q.x = static_cast<const In*>(p.x.data);
    q.out = static_cast<Out*>(p.out.data);
    q.x_stride = p.x.stride(0);
    q.out_stride = p.out.stride(0);
    q.x_sf = given<float>(p.x_sf);
    q.weights = given<float>(p.topk_weights);
    q.sf = given<float>(p.sf);
    q.positions = static_cast<const std::int32_t*>(p.token_topk_to_pos.data);
    q.weights_stride = q.weights ? p.topk_weights.stride(0) : 0;
    q.positions_stride = p.token_topk_to_pos.stride(0);
    q.rows = p.x.extent(0);
    q.k = p.token_topk_to_pos.extent(1);
    q.hidden = p.out.extent(1);
    q.trap = c.call.trap;
    const std::int64_t tokens = p.out.extent(0), hidden = q.hidden;
    using aligned = reduce_aligned<In, Out>;
    using columns = reduce_columns<In, Out>;
    const bool fast = hidden > 0 && rows_aligned(p.x, 16) &&
                      rows_aligned(p.out, std::min<std::int64_t>(16, aligned::own * size_of(p.out.dtype)));
    // A row without columns still has its slots looked at.
    const std::int64_t row_units = fast ? hidden / aligned::own : std::max<std::int64_t>(1, hidden);
    q.units = tokens * row_units;
    if (q.units == 0) return;
    q.row_units = divider(row_units, q.units);
    if (fast) return gpu::launch<aligned>(c, numeric::ceil_div(q.units, aligned::threads), 0, q);
    gpu::launch<columns>(c, numeric::ceil_div(q.units, columns::threads), 0, q);
  }
  template <class T>
  static const T* given(const tensor& t) {
    return t.defined() ? static_cast<const T*>(t.data) : nullptr;
  }
};

}  // namespace

extern const portile_implementation moe_reduce_fused_simt;
const portile_implementation moe_reduce_fused_simt = make_simt<moe::reduce_fused, reduce_fused_simt>();

}  // namespace portile::gpu
