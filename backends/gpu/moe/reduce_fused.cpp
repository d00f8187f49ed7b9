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

  PORTILE_DEVICE bool is_row(std::int64_t pos) const { return pos >= 0 && pos < rows; }
  PORTILE_DEVICE std::int32_t position(std::int64_t t, std::int64_t j) const {
    return positions[t * positions_stride + j];
  }
  PORTILE_DEVICE float weight(std::int64_t t, std::int64_t j) const {
    return weights ? weights[t * weights_stride + j] : 1.0f;
  }
};

/// Aligned rows: a wave a piece of a token's row, 64 bytes of x a lane and slot. Its lanes look up the slots
/// together, so that those without a row cost nothing.
template <class In, class Out>
struct reduce_aligned {
  static constexpr int threads = 128, min_blocks = std::is_same_v<In, float> ? 6 : 5;
  /// Values that a lane loads and stores in a row: 16 bytes of the result, if the 64 of x hold as many.
  static constexpr int run_values = std::is_same_v<Out, numeric::e4m3> ? 16 : 16 / sizeof(Out);
  static constexpr int own = 64 / sizeof(In), runs = own / run_values;
  static constexpr int vectors = 4 / runs;  ///< 16-byte loads of a run
  using params = reduce_params<In, Out>;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    const float sf = p.sf ? *p.sf : 1.0f;
    for (std::int64_t i = block.index() * Block::num_waves + block.wave(); i < p.units;
         i += block.grid() * Block::num_waves) {
      const std::int64_t t = p.row_units.quotient(i), piece = i - t * p.row_units.value();
      const std::int64_t first = piece * own * Block::wave_size + block.lane() * run_values;
      float acc[own] = {};
      for (std::int64_t base = 0; base < p.k; base += Block::wave_size) {
        const std::int64_t j = base + block.lane();
        std::int32_t pos = -1;
        float weight = 0.0f;
        if (j < p.k) {
          pos = p.position(t, j);
          weight = p.weight(t, j);
          if (piece == 0 && pos >= p.rows) raise_trap(p.trap, 0, t * p.k + j);
        }
        const bool is_row = p.is_row(pos);
        float row_sf = 1.0f;
        if (is_row && p.x_sf) row_sf = p.x_sf[pos];
        std::uint64_t left = block.ballot(is_row);
        // Two rows are on their way at a time.
        while (left != 0) {
          if ((left & (left - 1)) != 0)
            add_rows<2>(block, p, left, pos, weight, row_sf, first, acc);
          else
            add_rows<1>(block, p, left, pos, weight, row_sf, first, acc);
        }
      }
      Out* const out = p.out + t * p.out_stride;
      PORTILE_UNROLL
      for (int r = 0; r < runs; ++r) {
        const std::int64_t column = first + r * Block::wave_size * run_values;
        float* const v = acc + r * run_values;
        if (column >= p.hidden) continue;
        if constexpr (std::is_same_v<Out, numeric::e4m3>) {
          if (p.sf) {
            PORTILE_UNROLL
            for (int u = 0; u < run_values; ++u) v[u] = v[u] * sf;
          }
          store_codes16(out, column, v);
        } else {
          store_values<Out, run_values>(out, column, v);
        }
      }
    }
  }

 private:
  /// Takes the first `count` lanes out of `left` and adds the rows of their slots.
  template <int count, class Block>
  static PORTILE_DEVICE void add_rows(const Block& block, const params& p, std::uint64_t& left,
                                      std::int32_t pos, float weight, float row_sf, std::int64_t first,
                                      float (&acc)[own]) {
    words4 x[count][4];
    int lane[count];
    PORTILE_UNROLL
    for (int n = 0; n < count; ++n) {
      lane[n] = first_lane(left);
      left &= left - 1;
      const In* const row = p.x + block.shuffle(pos, lane[n]) * p.x_stride;
      PORTILE_UNROLL
      for (int u = 0; u < 4; ++u) {
        const std::int64_t run = first + u / vectors * Block::wave_size * run_values;
        // Lanes behind the row's end look at its start.
        x[n][u] =
            load16(row + (run < p.hidden ? run : 0) + u % vectors * (16 / static_cast<int>(sizeof(In))));
      }
    }
    // The factors are multiplied here, so that the rows do not wait for their scales.
    PORTILE_UNROLL
    for (int n = 0; n < count; ++n)
      add(acc, x[n], block.shuffle(weight, lane[n]) * block.shuffle(row_sf, lane[n]));
  }
  static PORTILE_DEVICE void add(float (&acc)[own], const words4 (&x)[4], float factor) {
    PORTILE_UNROLL
    for (int u = 0; u < own; ++u) {
      const std::uint32_t word = x[u * sizeof(In) / 16].w[u * sizeof(In) / 4 % 4];
      float value;
      if constexpr (std::is_same_v<In, float>)
        value = numeric::bits_float(word);
      else
        value = u % 2 ? bf16_high(word) : bf16_low(word);
      acc[u] = ::fmaf(value, factor, acc[u]);
    }
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
      for (std::int64_t j = 0; j < p.k; ++j) {
        const std::int64_t pos = p.position(t, j);
        if (column == 0 && pos >= p.rows) raise_trap(p.trap, 0, t * p.k + j);
        if (!p.is_row(pos) || column >= p.hidden) continue;
        const float weight = p.weight(t, j), factor = p.x_sf ? weight * p.x_sf[pos] : weight;
        acc = ::fmaf(load_value(p.x + pos * p.x_stride, column), factor, acc);
      }
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
    const bool fast =
        hidden > 0 && hidden % aligned::run_values == 0 && rows_aligned(p.x, 16) && rows_aligned(p.out, 16);
    const std::int64_t wave = c.call.device->wave_size;
    // A row without columns still has its slots looked at.
    const std::int64_t row_units =
        fast ? numeric::ceil_div(hidden, aligned::own * wave) : std::max<std::int64_t>(1, hidden);
    q.units = tokens * row_units;
    if (q.units == 0) return;
    q.row_units = divider(row_units, q.units);
    if (fast) return gpu::launch<aligned>(c, numeric::ceil_div(q.units, aligned::threads / wave), 0, q);
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
