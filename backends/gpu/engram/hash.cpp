#include <portile/kernels/engram/hash.hpp>

#include "backends/gpu/values.hpp"

namespace portile::gpu {
namespace {

/// What a column needs to reduce a hash, once per block: a 64-bit remainder by division takes longer than all
/// the rest.
struct hash_column {
  std::uint64_t reciprocal;  ///< floor((2^64 - 1) / size)
  std::int32_t size, offset;
};

/// Blocks of one layer each. A thread writes up to four columns of one n-gram size for a token.
template <bool table_fits>
struct hash_columns {
  static constexpr int threads = 256, values = 4;
  struct params {
    const std::int32_t *ids, *vocab, *offsets;
    const std::int64_t* multipliers;
    const std::uint8_t* mask;
    std::int32_t* out;
    std::int64_t id_stride, multiplier_stride, vocab_layer, vocab_size, offset_stride, mask_stride;
    std::int64_t out_layer, out_token;
    std::int64_t tokens, columns, blocks, layer_items;
    divider tables, per_size, per_token, layers;
    std::uint64_t* trap;
    bool aligned;
  };

  static PORTILE_DEVICE hash_column column_of(const params& p, std::int64_t layer, std::int64_t column) {
    const std::int64_t q = p.tables.quotient(column);
    hash_column h{0, p.vocab[layer * p.vocab_layer + q * p.vocab_size + column - q * p.tables.value()],
                  p.offsets[layer * p.offset_stride + column]};
    if (h.size >= 1) h.reciprocal = ~std::uint64_t{0} / static_cast<std::uint64_t>(h.size);
    return h;
  }

  /// h modulo size, in [0, size), also for negative h.
  static PORTILE_DEVICE std::int64_t floor_mod(std::uint64_t h, const hash_column& c) {
    const bool negative = h >> 63 != 0;
    const std::uint64_t u = negative ? ~h : h, size = static_cast<std::uint64_t>(c.size);
    // At most 2 below the true quotient.
    const auto quotient = static_cast<std::uint64_t>(static_cast<unsigned __int128>(u) * c.reciprocal >> 64);
    std::uint64_t r = u - quotient * size;
    r = r >= size ? r - size : r;
    r = r >= size ? r - size : r;
    // ~h = -h - 1.
    return static_cast<std::int64_t>(negative ? size - 1 - r : r);
  }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t b = block.index(); b < p.blocks; b += block.grid()) {
      const std::int64_t tile = p.layers.quotient(b), layer = b - tile * p.layers.value();
      const std::int64_t item = tile * threads + block.thread();
      const bool live = item < p.layer_items;
      const std::int64_t t = p.per_token.quotient(item), rest = item - t * p.per_token.value();
      const std::int64_t q = p.per_size.quotient(rest), e0 = (rest - q * p.per_size.value()) * values;

      std::uint64_t h = 0;
      bool masked = false;
      if (live) {
        masked = p.mask && p.mask[t * p.mask_stride] != 0;
        for (std::int64_t j = 0; j <= q + 1; ++j)
          h ^= static_cast<std::uint64_t>(std::int64_t{p.ids[t * p.id_stride + j]}) *
               static_cast<std::uint64_t>(p.multipliers[layer * p.multiplier_stride + j]);
      }
      auto* table = table_fits ? block.template shared<hash_column>() : nullptr;
      if constexpr (table_fits) {
        for (std::int64_t column = block.thread(); column < p.columns; column += threads)
          block.template shared<hash_column>()[column] = column_of(p, layer, column);
        block.barrier();
      }
      if (live) {
        const std::int64_t column0 = q * p.tables.value() + e0;
        std::int32_t row[values];
        PORTILE_UNROLL
        for (int i = 0; i < values; ++i) {
          row[i] = -1;
          if (masked || e0 + i >= p.tables.value()) continue;
          const std::int64_t column = column0 + i;
          const hash_column c = table_fits ? table[column] : column_of(p, layer, column);
          if (c.size < 1) {
            raise_trap(p.trap, 0, layer * p.columns + column);
            continue;
          }
          const std::int64_t sum = floor_mod(h, c) + c.offset;
          if (sum == static_cast<std::int32_t>(sum))
            row[i] = static_cast<std::int32_t>(sum);
          else
            raise_trap(p.trap, 1, (layer * p.tokens + t) * p.columns + column);
        }
        std::int32_t* out = p.out + layer * p.out_layer + t * p.out_token + column0;
        if (p.aligned) {
          store16(out, {{static_cast<std::uint32_t>(row[0]), static_cast<std::uint32_t>(row[1]),
                         static_cast<std::uint32_t>(row[2]), static_cast<std::uint32_t>(row[3])}});
        } else {
          PORTILE_UNROLL
          for (int i = 0; i < values; ++i)
            if (e0 + i < p.tables.value()) out[i] = row[i];
        }
      }
      if constexpr (table_fits) block.barrier();
    }
  }
};

struct hash_simt {
  static void launch(const context& c, const engram::hash& p) {
    const std::int64_t layers = p.out.extent(0), columns = p.out.extent(2);
    if (p.out.numel() == 0) return;
    constexpr std::int64_t most_columns = 1024;
    if (columns <= most_columns)
      start<hash_columns<true>>(c, p, layers, columns,
                                static_cast<std::size_t>(columns) * sizeof(hash_column));
    else
      start<hash_columns<false>>(c, p, layers, columns, 0);
  }

 private:
  template <class K>
  static void start(const context& c, const engram::hash& p, std::int64_t layers, std::int64_t columns,
                    std::size_t shared_bytes) {
    typename K::params k{};
    k.ids = static_cast<const std::int32_t*>(p.ngram_token_ids.data);
    k.vocab = static_cast<const std::int32_t*>(p.vocab_sizes.data);
    k.offsets = static_cast<const std::int32_t*>(p.offsets.data);
    k.multipliers = static_cast<const std::int64_t*>(p.multipliers.data);
    if (p.image_token_mask.defined()) {
      k.mask = static_cast<const std::uint8_t*>(p.image_token_mask.data);
      k.mask_stride = p.image_token_mask.stride(0);
    }
    k.out = static_cast<std::int32_t*>(p.out.data);
    k.id_stride = p.ngram_token_ids.stride(0);
    k.multiplier_stride = p.multipliers.stride(0);
    k.vocab_layer = p.vocab_sizes.stride(0);
    k.vocab_size = p.vocab_sizes.stride(1);
    k.offset_stride = p.offsets.stride(0);
    k.out_layer = p.out.stride(0);
    k.out_token = p.out.stride(1);
    k.tokens = p.out.extent(1);
    k.columns = columns;
    k.trap = c.call.trap;
    const std::int64_t tables = p.vocab_sizes.extent(2), per_size = numeric::ceil_div(tables, K::values);
    const std::int64_t per_token = p.vocab_sizes.extent(1) * per_size;
    k.aligned = tables % K::values == 0 && rows_aligned(p.out, 16);
    k.layer_items = k.tokens * per_token;
    k.blocks = numeric::ceil_div(k.layer_items, K::threads) * layers;
    k.tables = divider(tables, columns);
    k.per_size = divider(per_size, per_token);
    k.per_token = divider(per_token, k.layer_items + K::threads);
    k.layers = divider(layers, k.blocks);
    gpu::launch<K>(c, k.blocks, shared_bytes, k);
  }
};

}  // namespace

extern const portile_implementation engram_hash_simt;
const portile_implementation engram_hash_simt = make_simt<engram::hash, hash_simt>();

}  // namespace portile::gpu
