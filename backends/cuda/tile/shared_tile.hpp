#pragma once
// Tiles in shared memory as the copy engine writes them and the tensor cores read them. Plain arithmetic,
// tested on the host.
#include <cstdint>

namespace portile::cuda {

/// A tile of `Rows` rows of 128 bytes with the 128-byte swizzle: the 16-byte unit u of row r lies at unit u ^
/// (r % 8). It starts at a multiple of 1024 bytes. Rows are 128 bytes whatever the type, so one box of a
/// tensor map fills it and eight rows of any unit column lie in eight different groups of banks.
template <int Rows>
struct shared_tile {
  static constexpr int rows = Rows, row_bytes = 128, bytes = rows * row_bytes, alignment = 1024;

  /// Where byte `byte` of row `row` lies.
  static constexpr std::uint32_t offset(int row, int byte) {
    return static_cast<std::uint32_t>(row * row_bytes + ((byte / 16) ^ (row % 8)) * 16 + byte % 16);
  }

  /// The descriptor that wgmma takes for the tile at this address, K along the rows. Eight rows make a core
  /// group: `stride` bytes lie between groups.
  static constexpr std::uint64_t descriptor(std::uint32_t address) {
    constexpr std::uint64_t leading = 1, stride = 8 * row_bytes / 16, swizzle_128 = 1;
    return (std::uint64_t{address} & 0x3FFFF) >> 4 | leading << 16 | stride << 32 | swizzle_128 << 62;
  }
  /// How much to add to a descriptor for `bytes` further along K; the swizzle works on address bits, so a
  /// start inside the first 128 bytes is legal.
  static constexpr std::uint64_t along_k(int bytes) { return static_cast<std::uint64_t>(bytes >> 4); }
};

}  // namespace portile::cuda
