#pragma once
// How a product is cut on sm_90: plain numbers, host only, printable.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace portile::cuda::sm90 {

/// What the blocks of a cluster have in common.
enum class cluster_use : int {
  none,          ///< a block alone
  same_columns,  ///< tiles below each other: each loads a share of b for all
  same_rows,     ///< tiles beside each other: each loads a share of a for all
  split_k,       ///< one tile: each has a share of K, summed in order through the cluster's shared memory
};

/// Types of the factors.
enum class gemm_type : int { bf16, tf32, e4m3 };

struct gemm_config {
  int tile_m = 128, tile_n = 256;
  int stages = 4;  ///< of the pipeline
  int staging =
      2;  ///< pieces of 64 rows x 128 bytes in which a warpgroup hands its results to the copy engine
  int blocks = 1;  ///< of a cluster
  cluster_use use = cluster_use::none;
  int band = 16;  ///< rows of clusters that run column by column

  static constexpr int shared_limit = 232448, piece_bytes = 64 * 128, max_stages = 20;
  constexpr int stage_bytes() const { return (tile_m + tile_n) * 128; }
  /// 1 KiB to align the tiles, 1 KiB of barriers.
  constexpr int shared_bytes() const { return stages * stage_bytes() + 2 * staging * piece_bytes + 2048; }
  std::string text() const;
};

/// What a choice depends on.
struct gemm_shape {
  std::int64_t m = 0, n = 0, k = 0;
  gemm_type type = gemm_type::bf16;
  int out_bytes = 2;
  int num_sms = 132;
  bool grouped = false;  ///< m: rows of a typical expert times the experts
  int table_bytes = 0;   ///< of shared memory, for other things

  bool operator==(const gemm_shape&) const = default;
  constexpr int in_bytes() const { return type == gemm_type::bf16 ? 2 : type == gemm_type::tf32 ? 4 : 1; }
  constexpr int step() const { return 128 / in_bytes(); }  ///< channels of a stage
};

/// A configuration for each tile that kernels are compiled for: only tile_m and tile_n count.
std::span<const gemm_config> tiles_of(gemm_type type);

/// Every legal way to cut the product, and the time that each may take, in microseconds: the model behind
/// `pick`.
std::vector<gemm_config> candidates(const gemm_shape& s);
double cost(const gemm_shape& s, const gemm_config& c);
gemm_config pick(const gemm_shape& s);

}  // namespace portile::cuda::sm90
