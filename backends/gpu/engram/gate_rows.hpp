#pragma once
// What the engram gate and its gradient share.
#include <portile/kernels/engram/kv.hpp>

#include "backends/gpu/reduce.hpp"
#include "backends/gpu/rows.hpp"

namespace portile::gpu {

/// Row (t, i) of [num_tokens, mhc_mult, hidden_size], or of [num_tokens, hidden_size] with i = 0.
template <class T>
struct stream_rows {
  T* data = nullptr;
  std::int64_t token = 0, stream = 0;

  stream_rows() = default;
  explicit stream_rows(const tensor& t)
      : data(static_cast<T*>(t.data)), token(t.stride(0)), stream(t.rank == 3 ? t.stride(1) : 0) {}
  PORTILE_DEVICE T* operator()(std::int64_t t, std::int64_t i) const { return data + t * token + i * stream; }
};

/// A number per token and stream; writes to an absent one do nothing.
template <class T>
struct stream_values {
  T* data = nullptr;
  std::int64_t token = 0;

  stream_values() = default;
  explicit stream_values(const tensor& t) {
    if (!t.defined()) return;
    data = static_cast<T*>(t.data);
    token = t.stride(0);
  }
  PORTILE_DEVICE float operator()(std::int64_t t, std::int64_t i) const { return data[t * token + i]; }
  PORTILE_DEVICE void set(std::int64_t t, std::int64_t i, float v) const {
    if (data) data[t * token + i] = v;
  }
};

struct token_mask {
  const std::uint8_t* data = nullptr;
  std::int64_t stride = 0;

  token_mask() = default;
  explicit token_mask(const tensor& t) {
    if (!t.defined()) return;
    data = static_cast<const std::uint8_t*>(t.data);
    stride = t.stride(0);
  }
  PORTILE_DEVICE bool operator()(std::int64_t t) const { return data && data[t * stride] != 0; }
};

/// Tokens are cut into tiles of almost equal size. The blocks of a tile, one a stream, follow each other, so
/// that what the streams share is read from memory once.
struct token_tiles {
  std::int64_t tokens = 0, tiles = 0, blocks = 0;
  divider streams;

  token_tiles() = default;
  token_tiles(std::int64_t num_tokens, std::int64_t num_tiles, std::int64_t num_streams)
      : tokens(num_tokens), tiles(num_tiles), blocks(num_tiles * num_streams) {
    if (blocks > 0) streams = divider(num_streams, blocks);
  }
  PORTILE_DEVICE std::int64_t begin(std::int64_t tile) const { return tokens * tile / tiles; }
};

/// Blocks of `threads` that an H200 runs at a time, at 1024 threads for each multiprocessor.
inline std::int64_t resident_blocks(std::int64_t threads) { return 132 * 1024 / threads; }

/// Calls f<threads, chunks>() for rows of eights in registers, the fewest threads that will do; false when
/// there are too many.
template <class F>
bool with_row_shape(std::int64_t hidden, F f) {
  if (hidden <= 1024)
    f.template operator()<128, 1>();
  else if (hidden <= 2048)
    f.template operator()<256, 1>();
  else if (hidden <= 4096)
    f.template operator()<512, 1>();
  else if (hidden <= 8192)
    f.template operator()<512, 2>();
  else
    return false;
  return true;
}

}  // namespace portile::gpu
