#include <portile/kernels/transpose/batched.hpp>
#include <portile/kernels/transpose/transpose.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// Tiles of 128 bytes each way through shared memory, `stack` of them below each other: 64 bytes a thread in
/// any case. With E elements to a word, a thread loads 16 bytes of E neighbouring rows of each tile, turns
/// them in registers into words of E rows, and later stores 16 bytes of four result rows.
template <class T>
struct transpose_tile {
  static constexpr int threads = 256;
  static constexpr int per_word = 4 / static_cast<int>(sizeof(T)), per_chunk = 4 * per_word;
  static constexpr int stack = 4 / per_word, width = 32 * per_word, height = width * stack;
  static constexpr int tile_words = width * 32;
  static constexpr std::size_t shared_bytes = std::size_t{stack} * tile_words * 4;
  /// Tiles follow each other down this many tile rows before they go on to the next column, so that what is
  /// read and what is written at a time both make longer runs of memory.
  static constexpr std::int64_t group = 8;

  struct params {
    const T* x;
    T* out;
    std::int64_t x_batch, x_row, out_batch, out_row;
    std::int64_t rows, cols, tiles;
    divider matrix_tiles, group_tiles, whole_group, last_group;
    std::int64_t tile_rows;
    bool x_aligned, out_aligned;
  };

  static PORTILE_DEVICE words4 load(const T* p, bool aligned) {
    if (aligned) return load16(p);
    words4 v{};
    PORTILE_UNROLL
    for (int i = 0; i < per_chunk; ++i)
      v.w[i / per_word] |= std::uint32_t{p[i]} << (i % per_word * 8 * static_cast<int>(sizeof(T)));
    return v;
  }
  static PORTILE_DEVICE void store(T* p, words4 v, bool aligned) {
    if (aligned) return store16(p, v);
    PORTILE_UNROLL
    for (int i = 0; i < per_chunk; ++i)
      p[i] = static_cast<T>(v.w[i / per_word] >> (i % per_word * 8 * static_cast<int>(sizeof(T))));
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    // Word w of column c lies at (w / 4 ^ chunk of c) * 4 + w % 4 of its 32 words: neither the stores of
    // words nor the loads of four have bank conflicts.
    for (std::int64_t tile = block.index(); tile < p.tiles; tile += block.grid()) {
      const std::int64_t batch = p.matrix_tiles.quotient(tile);
      std::int64_t rest = tile - batch * p.matrix_tiles.value();
      const std::int64_t g = p.group_tiles.quotient(rest);
      rest -= g * p.group_tiles.value();
      const bool whole = (g + 1) * group <= p.tile_rows;
      const std::int64_t in_group = whole ? p.whole_group.value() : p.last_group.value();
      const std::int64_t tile_col = whole ? p.whole_group.quotient(rest) : p.last_group.quotient(rest);
      const std::int64_t row0 = (g * group + rest - tile_col * in_group) * height, col0 = tile_col * width;

      {
        const int chunk = block.thread() % 8, line = block.thread() / 8;
        const std::int64_t row = row0 + line * per_word, col = col0 + chunk * per_chunk;
        words4 v[stack][per_word] = {};
        PORTILE_UNROLL
        for (int s = 0; s < stack; ++s) {
          if (row + s * width >= p.rows || col >= p.cols) continue;
          const T* from = p.x + batch * p.x_batch + (row + s * width) * p.x_row + col;
          PORTILE_UNROLL
          for (int i = 0; i < per_word; ++i) v[s][i] = load(from + i * p.x_row, p.x_aligned);
        }
        const int slot = (line / 4 ^ chunk) * 4 + line % 4;
        PORTILE_UNROLL
        for (int s = 0; s < stack; ++s) {
          PORTILE_UNROLL
          for (int k = 0; k < per_chunk; ++k)
            block.template shared<word_of>()[s * tile_words + (chunk * per_chunk + k) * 32 + slot] =
                gather(v[s], k);
        }
      }
      block.barrier();
      {
        constexpr int row_chunks = 8 * stack;
        const int at = block.thread() % row_chunks, s = at / 8, chunk = at % 8;
        PORTILE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int c = block.thread() / row_chunks + threads / row_chunks * i;
          const std::int64_t out_row = col0 + c, out_col = row0 + at * per_chunk;
          if (out_row < p.cols && out_col < p.rows)
            store(p.out + batch * p.out_batch + out_row * p.out_row + out_col,
                  load16(block.template shared<word_of>() + s * tile_words + c * 32 +
                         (chunk ^ c / per_chunk) * 4),
                  p.out_aligned);
        }
      }
      block.barrier();
    }
  }

 private:
  using word_of = std::uint32_t;
  /// Element k of each of the rows, the first row in the low bits.
  static PORTILE_DEVICE std::uint32_t gather(const words4 (&v)[per_word], int k) {
    constexpr int bits = 8 * static_cast<int>(sizeof(T));
    if constexpr (per_word == 1) {
      return v[0].w[k];
    } else {
      std::uint32_t w = 0;
      PORTILE_UNROLL
      for (int i = 0; i < per_word; ++i)
        w |= std::uint32_t{static_cast<T>(v[i].w[k / per_word] >> (k % per_word * bits))} << (i * bits);
      return w;
    }
  }
};

template <class T>
void launch_transpose(const context& c, const tensor& x, const tensor& out) {
  using kernel = transpose_tile<T>;
  if (x.numel() == 0) return;
  const int r = x.rank - 2;
  const std::int64_t batches = r > 0 ? x.extent(0) : 1;
  typename kernel::params p;
  p.x = static_cast<const T*>(x.data);
  p.out = static_cast<T*>(out.data);
  p.rows = x.extent(r);
  p.cols = x.extent(r + 1);
  p.x_batch = r > 0 ? x.stride(0) : 0;
  p.out_batch = r > 0 ? out.stride(0) : 0;
  p.x_row = x.stride(r);
  p.out_row = out.stride(r);
  p.tile_rows = numeric::ceil_div(p.rows, kernel::height);
  const std::int64_t tile_cols = numeric::ceil_div(p.cols, kernel::width), each = p.tile_rows * tile_cols;
  p.tiles = batches * each;
  p.matrix_tiles = divider(each, p.tiles);
  p.group_tiles = divider(kernel::group * tile_cols, each);
  p.whole_group = divider(kernel::group, each);
  p.last_group = divider(std::max<std::int64_t>(p.tile_rows % kernel::group, 1), each);
  p.x_aligned = rows_aligned(x, 16);
  p.out_aligned = rows_aligned(out, 16);
  gpu::launch<kernel>(c, p.tiles, kernel::shared_bytes, p);
}

/// Both operations: a single matrix is a batch of one.
struct transpose_simt {
  static void launch(const context& c, const auto& p) {
    switch (size_of(p.x.dtype)) {
      case 1:
        return launch_transpose<std::uint8_t>(c, p.x, p.out);
      case 2:
        return launch_transpose<std::uint16_t>(c, p.x, p.out);
      default:
        return launch_transpose<std::uint32_t>(c, p.x, p.out);
    }
  }
};

}  // namespace

extern const portile_implementation transpose_transpose_simt, transpose_batched_simt;
const portile_implementation transpose_transpose_simt = make_simt<transpose::transpose, transpose_simt>();
const portile_implementation transpose_batched_simt = make_simt<transpose::batched, transpose_simt>();

}  // namespace portile::gpu
