#include <portile/kernels/engram/gather.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// A thread copies 16 bytes, or one element (`Word`).
template <class Word>
struct gather_words {
  static constexpr int threads = 256;
  struct params {
    const Word* table;
    const std::int32_t* index;
    Word* out;
    std::int64_t table_stride, index_stride, out_stride;  ///< of rows; those of data in words
    std::int64_t rows, width, items;
    divider per_row, columns;
    std::uint64_t* trap;
  };

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t item = block.index() * threads + block.thread(); item < p.items;
         item += block.grid() * threads) {
      const std::int64_t pick = p.per_row.quotient(item), j = item - pick * p.per_row.value();
      const std::int64_t t = p.columns.quotient(pick), c = pick - t * p.columns.value();
      const std::int64_t row = p.index[t * p.index_stride + c];
      const bool found = row >= 0 && row < p.rows;
      if (!found && row != -1 && j == 0) raise_trap(p.trap, 0, pick);
      if (j >= p.width) continue;
      const Word* from = p.table + row * p.table_stride + j;
      Word* to = p.out + t * p.out_stride + c * p.width + j;
      if constexpr (sizeof(Word) == 16)
        store16(to, found ? load16(from) : words4{});
      else
        *to = found ? *from : Word{};
    }
  }
};

struct gather_simt {
  static void launch(const context& c, const engram::gather& p) {
    if (p.table.extent(1) % 8 == 0 && rows_aligned(p.table, 16) && rows_aligned(p.out, 16))
      start<words4>(c, p);
    else
      start<std::uint16_t>(c, p);
  }

 private:
  template <class Word>
  static void start(const context& c, const engram::gather& p) {
    using kernel = gather_words<Word>;
    constexpr std::int64_t unit = sizeof(Word) / 2;
    typename kernel::params k{};
    k.table = static_cast<const Word*>(p.table.data);
    k.index = static_cast<const std::int32_t*>(p.index.data);
    k.out = static_cast<Word*>(p.out.data);
    k.table_stride = p.table.stride(0) / unit;
    k.index_stride = p.index.stride(0);
    k.out_stride = p.out.stride(0) / unit;
    k.rows = p.table.extent(0);
    k.width = p.table.extent(1) / unit;
    k.trap = c.call.trap;
    const std::int64_t picks = p.index.numel();
    if (picks == 0) return;
    // Indices are looked at even where the rows are empty.
    const std::int64_t per_row = std::max<std::int64_t>(k.width, 1);
    k.items = picks * per_row;
    k.per_row = divider(per_row, k.items + kernel::threads);
    k.columns = divider(p.index.extent(1), picks);
    gpu::launch<kernel>(c, numeric::ceil_div(k.items, kernel::threads), 0, k);
  }
};

}  // namespace

extern const portile_implementation engram_gather_simt;
const portile_implementation engram_gather_simt = make_simt<engram::gather, gather_simt>();

}  // namespace portile::gpu
