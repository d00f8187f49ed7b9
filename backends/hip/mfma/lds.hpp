#pragma once
// How a tile of factors lies in LDS: rows of 64 bytes, read and written in chunks of 16.

namespace portile::hip {

inline constexpr int row_bytes = 64, chunk_bytes = 16, row_chunks = row_bytes / chunk_bytes;

/// Where a chunk lies. Its place in its row depends on the row, so that eight lanes that read one chunk of
/// eight rows in a row, or all chunks of two, use each of the 32 banks once (tests/hip counts).
constexpr int chunk_at(int row, int chunk) {
  return row * row_bytes + (chunk ^ (row / 2 % row_chunks)) * chunk_bytes;
}

}  // namespace portile::hip
