#include "backends/cuda/sm90/gemm_config.hpp"

#include <algorithm>
#include <cmath>

namespace portile::cuda::sm90 {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Tiles that kernels are compiled for.
struct tile_size {
  int m, n;
};
constexpr tile_size bf16_tiles[] = {{128, 256}, {128, 224}, {128, 192}, {128, 176}, {128, 128},
                                    {128, 64},  {64, 256},  {64, 128},  {64, 96},   {64, 64}};
constexpr tile_size tf32_tiles[] = {{128, 256}, {128, 192}, {128, 128}, {64, 128}, {64, 64}};
constexpr tile_size e4m3_tiles[] = {{128, 128}, {64, 128}, {64, 64}};

/// Clusters of a size that fit on a device: processor groups of 16 or 18 multiprocessors leave some over.
int active_clusters(int blocks, int num_sms) {
  switch (blocks) {
    case 1:
      return num_sms;
    case 2:
      return std::max(1, num_sms / 2);
    case 3:
      return std::max(1, num_sms * 39 / 132);
    default:
      return std::max(1, num_sms * 30 / 132);
  }
}

}  // namespace

std::span<const gemm_config> tiles_of(gemm_type type) {
  const auto make = [](std::span<const tile_size> sizes) {
    std::vector<gemm_config> v;
    for (const tile_size t : sizes) {
      gemm_config c;
      c.tile_m = t.m, c.tile_n = t.n;
      v.push_back(c);
    }
    return v;
  };
  static const std::vector<gemm_config> bf16 = make(bf16_tiles), tf32 = make(tf32_tiles),
                                        e4m3 = make(e4m3_tiles);
  return type == gemm_type::bf16 ? bf16 : type == gemm_type::tf32 ? tf32 : e4m3;
}

std::string gemm_config::text() const {
  const char* const uses[] = {"alone", "same columns", "same rows", "split K"};
  return std::to_string(tile_m) + "x" + std::to_string(tile_n) + ", " + std::to_string(stages) + " stages, " +
         std::to_string(staging) + " staging, " + std::to_string(blocks) + " blocks " +
         uses[static_cast<int>(use)] + ", band " + std::to_string(band);
}

std::vector<gemm_config> candidates(const gemm_shape& s) {
  std::vector<gemm_config> all;
  const std::int64_t steps = ceil_div(s.k, s.step());
  for (gemm_config c : tiles_of(s.type)) {
    // As few staging pieces as hide the stores, then as many stages as fit.
    const int pieces = std::max(1, c.tile_n * s.out_bytes / 128);
    const auto add = [&](int staging, int blocks, cluster_use use) {
      gemm_config d = c;
      d.staging = staging, d.blocks = blocks, d.use = use;
      d.band = use == cluster_use::same_columns ? 16 / blocks : 16;
      d.stages = 1;
      while (d.stages < gemm_config::max_stages) {
        ++d.stages;
        if (d.shared_bytes() + s.table_bytes > gemm_config::shared_limit) {
          --d.stages;
          break;
        }
      }
      const std::int64_t rows = ceil_div(s.m, c.tile_m), cols = ceil_div(s.n, c.tile_n);
      if (d.stages < 2 || blocks > s.num_sms || (s.m <= 64 && c.tile_m > 64)) return;
      if (use == cluster_use::same_columns && (rows < blocks || s.grouped)) return;
      if (use == cluster_use::same_rows && cols < blocks) return;
      if (use == cluster_use::split_k &&
          (steps < 4 * blocks || s.grouped || c.tile_m * c.tile_n * 4 > d.stages * d.stage_bytes() ||
           rows * cols > active_clusters(blocks, s.num_sms)))
        return;
      all.push_back(d);
    };
    // A product of few steps hands its results over at once; a long one needs the stages more.
    const int staging = std::min(pieces, steps * s.step() * s.in_bytes() > 2048 ? 1 : 4);
    add(staging, 1, cluster_use::none);
    add(staging, 2, cluster_use::same_columns);
    add(staging, 2, cluster_use::same_rows);
    for (int blocks = 2; blocks <= 4; ++blocks) add(0, blocks, cluster_use::split_k);
  }
  return all;
}

// Cycles of the tensor cores, of the L2 cache and of memory; the slowest counts. Constants are fitted to
// times measured on the H200.
double cost(const gemm_shape& s, const gemm_config& c) {
  const double clock = 1755, sms = s.num_sms;  // cycles a microsecond
  const bool split = c.use == cluster_use::split_k;
  const double steps = static_cast<double>(ceil_div(s.k, s.step()));
  const std::int64_t rows =
                         ceil_div(ceil_div(s.m, c.tile_m), c.use == cluster_use::same_columns ? c.blocks : 1),
                     cols = ceil_div(ceil_div(s.n, c.tile_n), c.use == cluster_use::same_rows ? c.blocks : 1);
  const std::int64_t clusters = rows * cols, at_once = active_clusters(c.blocks, s.num_sms);
  const double waves = static_cast<double>(ceil_div(clusters, at_once));
  const double own_steps = split ? std::ceil(steps / c.blocks) : steps;
  const double groups = c.tile_m / 64;

  // One instruction of 64 x N x 32 bytes: N / 2 cycles, or what it reads of shared memory at 128 bytes a
  // cycle.
  double instruction = std::max(c.tile_n / 2.0, (64.0 + c.tile_n) * 32 / 118);
  const double narrow = groups == 1 ? 1.1 : c.tile_n == 256 ? 1.0 : c.tile_n > 128 ? 1.035 : 1.06;
  const double apart = c.use == cluster_use::none && s.m > c.tile_m ? 1.015 : 1.0;
  double step = 4 * groups * instruction * narrow * apart * (s.type == gemm_type::e4m3 ? 1.12 : 1.04);
  // One warpgroup alone: what it does between products is not hidden.
  if (groups == 1) step = s.type == gemm_type::e4m3 ? step + 300 : std::max(step, 390.0);
  // Results leave while another tile is multiplied, except the last ones of a block.
  const double out = c.tile_m * c.tile_n * s.out_bytes / 64.0;
  const double store = split ? 3000 + c.tile_m * c.tile_n * 0.55 : 900 + out / 4;
  const double between = groups == 2 ? 350 + c.tile_n : 100;
  const double tensor = waves * own_steps * step + (waves - 1) * between + store + 1100;

  // What a block brings in a step, a shared part counted once for the cluster.
  const double a_bytes = c.tile_m * 128.0 / (c.use == cluster_use::same_rows ? c.blocks : 1),
               b_bytes = c.tile_n * 128.0 / (c.use == cluster_use::same_columns ? c.blocks : 1);
  const double blocks = static_cast<double>(clusters) * c.blocks;
  const double busy = std::min(blocks, static_cast<double>(at_once) * c.blocks);
  const double l2 =
      waves * own_steps * std::max((a_bytes + b_bytes) * busy / sms / 52, (c.tile_m + c.tile_n) * 128.0 / 60);
  const double dram_bytes =
      (static_cast<double>(s.m) + static_cast<double>(s.n)) * static_cast<double>(s.k) * s.in_bytes() +
      static_cast<double>(s.m) * static_cast<double>(s.n) * s.out_bytes;
  // Few blocks do not have enough on their way.
  // A last wave of few blocks leaves the memory idle.
  const double uneven = 1 + 0.15 * (waves * static_cast<double>(at_once) / static_cast<double>(clusters) - 1);
  const double dram =
      (waves > 1 ? uneven : 1.0) * dram_bytes / (4.2e6 * std::min(1.0, 0.55 + 0.45 * busy / sms)) * clock;
  // Rows of tiles that share nothing read b several times.
  const double again = groups == 1 && s.m > c.tile_m && c.use == cluster_use::none ? 1.1 : 1.0;
  return again * std::max({tensor, l2 + store + 1100, dram + store + 1100}) / clock + 2.0 +
         (c.blocks > 1 && !split ? 0.6 : 0.0);
}

gemm_config pick(const gemm_shape& s) {
  gemm_config best;
  double least = 0;
  bool any = false;
  for (const gemm_config& c : candidates(s)) {
    const double t = cost(s, c);
    // Among equals the first: larger tiles, smaller clusters.
    if (any && t >= least * 0.999) continue;
    any = true, least = t, best = c;
  }
  return best;
}

}  // namespace portile::cuda::sm90
