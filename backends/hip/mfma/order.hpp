#pragma once
// In which order blocks take tiles.
#include <cstdint>

namespace portile::hip {

/// The tile of the work-th block of a grid of `tiles` that goes to `dies` chiplets in turns, as gfx942 and
/// gfx950 hand out blocks: each chiplet, which has an L2 of its own, gets neighbouring tiles. A permutation.
constexpr std::int64_t tile_of(std::int64_t work, std::int64_t tiles, int dies) {
  const std::int64_t die = work % dies, whole = tiles / dies, more = tiles % dies;
  return die * whole + (die < more ? die : more) + work / dies;
}

}  // namespace portile::hip
