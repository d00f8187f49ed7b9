#pragma once
// Which tile of a result comes when. Plain arithmetic, tested on the host.
#include <cstdint>

namespace portile::cuda {

struct tile_place {
  int row, col;
};

/// Tiles of a rows x cols grid in bands of `group` rows, column by column within a band: tiles that run at
/// the same time share rows of a and columns of b in the L2 cache.
struct banded_order {
  int rows, cols, group;

  constexpr std::int64_t count() const { return std::int64_t{rows} * cols; }
  constexpr tile_place operator()(std::int64_t i) const {
    const std::int64_t in_band = std::int64_t{group} * cols;
    const int first = static_cast<int>(i / in_band) * group;
    const int height = rows - first < group ? rows - first : group;
    const int rest = static_cast<int>(i % in_band);
    return {first + rest % height, rest / height};
  }
};

}  // namespace portile::cuda
