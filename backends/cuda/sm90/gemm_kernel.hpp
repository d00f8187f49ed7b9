#pragma once
// Products a * b^T on sm_90: one warp starts the copies of the next stages, two warpgroups multiply and
// store.
#include <cuda.h>

#include "backends/cuda/ptx/cluster.hpp"
#include "backends/cuda/ptx/tma.hpp"
#include "backends/cuda/ptx/wgmma.hpp"
#include "backends/cuda/sm90/gemm_config.hpp"
#include "backends/cuda/tile/pipeline.hpp"
#include "backends/cuda/tile/scheduler.hpp"
#include "backends/cuda/tile/shared_tile.hpp"
#include "backends/gpu/gemm/experts.hpp"

namespace portile::cuda::sm90 {

/// Where a product goes and how it is cut.
struct gemm_params {
  CUtensorMap a, b, out;  ///< out: unused without `copy_out`
  void* out_data;
  std::int64_t out_stride, out_batch;  ///< elements
  int m, n, k_steps;                   ///< m: rows of out that the map knows; a step: 128 bytes of a row
  int col_tiles, row_tiles;            ///< of clusters; row_tiles: gemm.nt
  int stages, staging, blocks, band;
  cluster_use use;
  bool out_f32, accumulate;
  bool stream_b;  ///< b is read about once: it need not stay in the L2 cache
  bool copy_out;  ///< the copy engine takes out: aligned rows
  gpu::scale_reader a_sf, b_sf;
  std::int64_t a_sf_bytes, b_sf_bytes;  ///< from expert to expert
  gpu::expert_rows rows_of;             ///< grouped
};

/// Tile of a block. Of 128 rows, each warpgroup multiplies 64; tiles of 64 rows go to the warpgroups in turn,
/// so that one stores while the other multiplies.
template <ptx::wgmma_type Type, int TileM, int TileN>
struct tile_shape {
  static constexpr ptx::wgmma_type type = Type;
  static constexpr bool scaled = Type == ptx::wgmma_type::e4m3;
  static constexpr int tile_m = TileM, tile_n = TileN;
  static constexpr bool in_turn = TileM == 64;
  static constexpr int warps = in_turn ? 4 : 8;  ///< that multiply a tile
  static constexpr int sums = TileN / 2;         ///< of a thread
  static constexpr int k_bytes = 32;             ///< of one instruction
  static constexpr int step_elements = Type == ptx::wgmma_type::bf16   ? 64
                                       : Type == ptx::wgmma_type::tf32 ? 32
                                                                       : 128;
  using a_tile = shared_tile<TileM>;
  using b_tile = shared_tile<TileN>;
  static constexpr int stage_bytes = a_tile::bytes + b_tile::bytes;
  using mma = ptx::wgmma<Type, TileN>;
  static_assert(TileM == 64 || TileM == 128);
  static_assert(b_tile::bytes % shared_tile<8>::alignment == 0);
  static_assert(!scaled || 128 % TileN == 0, "one scale of b for a tile and step");
};

inline constexpr int gemm_threads = 384, consumer_threads = 256;
inline constexpr int max_split = 4;       ///< blocks that share a tile's K
inline constexpr int max_experts = 1024;  ///< whose places fit beside the tiles

/// The scales of a row, or of a row of blocks, along K. A word is loaded long before its value is needed, and
/// without branches: waiting for it would hold the tensor cores up.
class scale_column {
 public:
  PORTILE_PTX scale_column(const gpu::scale_reader& sf, std::int64_t batch_bytes, int row)
      : packed_(sf.type == dtype::ue8m0x4),
        step_(sf.col_stride),
        words_(reinterpret_cast<const std::uint32_t*>(static_cast<const char*>(sf.data) + batch_bytes) +
               row * sf.row_stride) {}
  PORTILE_PTX std::uint32_t load(int k) const { return words_[(packed_ ? k / 4 : k) * step_]; }
  PORTILE_PTX float value(std::uint32_t word, int k) const {
    return packed_ ? numeric::ue8m0_to_float(numeric::ue8m0x4{word}.byte(k % 4)) : __uint_as_float(word);
  }

 private:
  bool packed_;
  std::int64_t step_;
  const std::uint32_t* words_;
};

/// A tile of a block: where it starts, which rows of it count, which matrices of a batch it belongs to.
struct tile_at {
  int row0, col0, row_end;
  int a_batch, b_batch;
  bool shared;  ///< an earlier expert may have some of the rows: broken data, or segments out of order
};

/// This block's view of the launch.
template <class S>
struct gemm_block {
  const gemm_params& p;
  std::uint32_t tiles, staging;
  pipeline stages;
  int rank;

  PORTILE_PTX gemm_block(const gemm_params& params, const void* shared) : p(params) {
    tiles = ptx::keep((ptx::shared_address(shared) + 1023) & ~1023u);
    staging = tiles + p.stages * S::stage_bytes;
    stages = {staging + 2 * p.staging * gemm_config::piece_bytes, p.stages};
    rank = p.blocks > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
  }
  /// Blocks that write into each other's stages.
  PORTILE_PTX int sharing() const { return p.use == cluster_use::split_k ? 1 : p.blocks; }
  PORTILE_PTX int row_of(int cluster_row) const {
    return (p.use == cluster_use::same_columns ? cluster_row * p.blocks + rank : cluster_row) * S::tile_m;
  }
  PORTILE_PTX int col_of(int cluster_col) const {
    return (p.use == cluster_use::same_rows ? cluster_col * p.blocks + rank : cluster_col) * S::tile_n;
  }
  PORTILE_PTX int first_step() const {
    return p.use == cluster_use::split_k ? static_cast<int>(std::int64_t{p.k_steps} * rank / p.blocks) : 0;
  }
  PORTILE_PTX int last_step() const {
    return p.use == cluster_use::split_k ? static_cast<int>(std::int64_t{p.k_steps} * (rank + 1) / p.blocks)
                                         : p.k_steps;
  }
  PORTILE_PTX int steps() const { return last_step() - first_step(); }
  PORTILE_PTX std::uint32_t a_at(int stage) const { return tiles + stage * S::stage_bytes; }
  PORTILE_PTX std::uint32_t b_at(int stage) const { return a_at(stage) + S::a_tile::bytes; }

  PORTILE_PTX void start() const {
    if (threadIdx.x == consumer_threads) {
      ptx::prefetch_tensor_map(&p.a);
      ptx::prefetch_tensor_map(&p.b);
    }
    if (threadIdx.x == 0) {
      stages.init(S::warps * sharing());
      ptx::fence_mbarrier_init();
    }
    sync_cluster();
  }
  PORTILE_PTX void sync_cluster() const {
    if (p.blocks > 1) {
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
    } else {
      __syncthreads();
    }
  }

  /// One thread: starts the copies of a tile.
  PORTILE_PTX void load_tile(const tile_at& t, stage_place& at) const {
    const bool share_a = p.use == cluster_use::same_rows, share_b = p.use == cluster_use::same_columns;
    const int a_part = share_a ? S::tile_m / p.blocks * rank : 0,
              b_part = share_b ? S::tile_n / p.blocks * rank : 0;
    const int a_row = t.row0 + a_part, b_row = t.col0 + b_part;
    const std::uint64_t keep = ptx::policy_evict_last(), drop = ptx::policy_evict_first();
    const auto mask = static_cast<std::uint16_t>((1u << p.blocks) - 1);
    for (int k = first_step(), end = last_step(); k < end; ++k) {
      stages.wait_empty(at);
      stages.arm(at, S::stage_bytes);
      const std::uint32_t bar = stages.full(at.stage);
      const std::uint32_t a = a_at(at.stage) + a_part * 128, b = b_at(at.stage) + b_part * 128;
      const int x = k * S::step_elements;
      // Without a policy the loads are faster than with the one named normal.
      if (share_a)
        ptx::tma_load_multicast(a, &p.a, bar, x, a_row, t.a_batch, mask);
      else if (p.stream_b)
        ptx::tma_load(a, &p.a, bar, x, a_row, t.a_batch, keep);
      else
        ptx::tma_load(a, &p.a, bar, x, a_row, t.a_batch);
      if (share_b)
        ptx::tma_load_multicast(b, &p.b, bar, x, b_row, t.b_batch, mask);
      else if (p.stream_b)
        ptx::tma_load(b, &p.b, bar, x, b_row, t.b_batch, drop);
      else
        ptx::tma_load(b, &p.b, bar, x, b_row, t.b_batch);
      at.next(p.stages);
    }
  }

  // Tiles in turn: a warpgroup reads stages once the other has seen all of its own, so that a phase is never
  // taken for the one two turns later.
  PORTILE_PTX void wait_turn(int group) const { ptx::named_barrier(4 + group, consumer_threads); }
  PORTILE_PTX void give_turn(int group) const { ptx::named_arrive(4 + (group ^ 1), consumer_threads); }

  PORTILE_PTX void start_products(int group, int stage, bool accumulate, float (&d)[S::sums]) const {
    const std::uint64_t a = S::a_tile::descriptor(a_at(stage) + (S::in_turn ? 0 : group * 64 * 128)),
                        b = S::b_tile::descriptor(b_at(stage));
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 128 / S::k_bytes; ++i)
      S::mma::multiply(d, a + S::a_tile::along_k(i * S::k_bytes), b + S::b_tile::along_k(i * S::k_bytes),
                       i > 0 || accumulate);
  }

  /// A warpgroup: its sums of a tile. `hand_on`: the other warpgroup's turn is next.
  PORTILE_PTX void multiply_tile(const tile_at& t, int group, int thread, bool hand_on, stage_place& at,
                                 float (&d)[S::sums]) const {
    const int lane = thread % 32, count = steps();
    if constexpr (S::scaled) {
      multiply_scaled(t, group, thread, hand_on, at, d);
    } else {
      int before = -1;
      for (int k = 0; k < count; ++k) {
        const int stage = at.stage;
        stages.wait_full(at);
        start_products(group, stage, k > 0, d);
        at.next(p.stages);
        ptx::wgmma_commit();
        // The step before this one has read its stage.
        ptx::wgmma_wait<1>();
        if (before >= 0) stages.release(before, lane, sharing());
        before = stage;
      }
      if (S::in_turn && hand_on) give_turn(group);
      ptx::wgmma_wait<0>();
      ptx::wgmma_keep(d);
      stages.release(before, lane, sharing());
    }
  }

  /// A step is a block of scales along K: its sums are scaled and added in fp32.
  PORTILE_PTX void multiply_scaled(const tile_at& t, int group, int thread, bool hand_on, stage_place& at,
                                   float (&d)[S::sums]) const {
    const int first = first_step(), count = steps();
    // What does not count takes the scales of the last row or block that does: a tile may begin past both.
    const int row = own_row(t, group, thread), last_row = t.row_end - 1, last_col = (p.n - 1) / 128;
    const int col = t.col0 / 128;
    const scale_column low(p.a_sf, t.a_batch * p.a_sf_bytes, row < last_row ? row : last_row),
        high(p.a_sf, t.a_batch * p.a_sf_bytes, row + 8 < last_row ? row + 8 : last_row),
        cols(p.b_sf, t.b_batch * p.b_sf_bytes, col < last_col ? col : last_col);
    std::uint32_t a0 = low.load(first), a1 = high.load(first), b = cols.load(first);
#pragma unroll
    for (int i = 0; i < S::sums; ++i) d[i] = 0.0f;
    for (int k = 0; k < count; ++k) {
      float part[S::sums];
      stages.wait_full(at);
      start_products(group, at.stage, false, part);
      ptx::wgmma_commit();
      const float s = cols.value(b, first + k), s0 = low.value(a0, first + k) * s,
                  s1 = high.value(a1, first + k) * s;
      if (k + 1 < count) {
        a0 = low.load(first + k + 1);
        a1 = high.load(first + k + 1);
        b = cols.load(first + k + 1);
      } else if (S::in_turn && hand_on) {
        give_turn(group);
      }
      ptx::wgmma_wait<0>();
      ptx::wgmma_keep(part);
      stages.release(at.stage, thread % 32, sharing());
      at.next(p.stages);
#pragma unroll
      for (int i = 0; i < S::sums; ++i) d[i] = ::fmaf(part[i], i / 2 % 2 == 0 ? s0 : s1, d[i]);
    }
  }

  // Row and column of this thread's first sum.
  PORTILE_PTX static int first_row(const tile_at& t, int group) {
    return t.row0 + (S::in_turn ? 0 : group * 64);
  }
  PORTILE_PTX static int own_row(const tile_at& t, int group, int thread) {
    return first_row(t, group) + thread / 32 * 16 + thread % 32 / 4;
  }
  PORTILE_PTX static int own_col(const tile_at& t, int thread) { return t.col0 + thread % 4 * 2; }

  PORTILE_PTX char* out_of(const tile_at& t) const {
    return static_cast<char*>(p.out_data) + t.a_batch * p.out_batch * (p.out_f32 ? 4 : 2);
  }
  PORTILE_PTX bool in_pairs() const {
    return p.out_stride % 2 == 0 && p.out_batch % 2 == 0 &&
           reinterpret_cast<std::uintptr_t>(p.out_data) % (p.out_f32 ? 8 : 4) == 0;
  }
  PORTILE_PTX void load_old(const char* out, bool pairs, int row, int col, float& x, float& y) const {
    const std::int64_t at = row * p.out_stride + col;
    if (p.out_f32) {
      const float* from = reinterpret_cast<const float*>(out) + at;
      if (pairs && col + 1 < p.n) {
        const float2 v = *reinterpret_cast<const float2*>(from);
        x += v.x, y += v.y;
      } else {
        x += from[0];
        if (col + 1 < p.n) y += from[1];
      }
    } else {
      const auto* from = reinterpret_cast<const std::uint16_t*>(out) + at;
      x += __uint_as_float(std::uint32_t{from[0]} << 16);
      if (col + 1 < p.n) y += __uint_as_float(std::uint32_t{from[1]} << 16);
    }
  }
  PORTILE_PTX void store_pair(char* out, bool pairs, int row, int col, float x, float y) const {
    const std::int64_t at = row * p.out_stride + col;
    if (p.out_f32) {
      float* to = reinterpret_cast<float*>(out) + at;
      if (pairs && col + 1 < p.n) {
        *reinterpret_cast<float2*>(to) = make_float2(x, y);
      } else {
        to[0] = x;
        if (col + 1 < p.n) to[1] = y;
      }
    } else {
      auto* to = reinterpret_cast<std::uint16_t*>(out) + at;
      const std::uint32_t v = ptx::to_bf16x2(x, y);
      if (pairs && col + 1 < p.n) {
        *reinterpret_cast<std::uint32_t*>(to) = v;
      } else {
        to[0] = static_cast<std::uint16_t>(v);
        if (col + 1 < p.n) to[1] = static_cast<std::uint16_t>(v >> 16);
      }
    }
  }
  PORTILE_PTX bool owns(const tile_at& t, int row) const {
    return row < t.row_end && !(t.shared && p.rows_of.taken_by_earlier(t.b_batch, row));
  }

  /// A warpgroup's sums to out.
  PORTILE_PTX void store_tile(const tile_at& t, int group, int thread, float (&d)[S::sums]) const {
    const int row = own_row(t, group, thread);
    const bool low = owns(t, row), high = owns(t, row + 8);
    if (p.accumulate) {
      const char* out = out_of(t);
      const bool pairs = in_pairs();
#pragma unroll
      for (int i = 0; i < S::sums; i += 2) {
        const int c = own_col(t, thread) + i / 4 * 8;
        if ((i / 2 % 2 ? high : low) && c < p.n) load_old(out, pairs, row + i / 2 % 2 * 8, c, d[i], d[i + 1]);
      }
    }
    // The copy engine stops at the matrix's last row, not at an expert's.
    const bool whole = !t.shared && (first_row(t, group) + 64 <= t.row_end || t.row_end >= p.m);
    if (!p.copy_out || !whole)
      store_direct<0>(t, row, low, high, thread, d);
    else if (p.out_f32)
      store_copied<true>(t, group, thread, row, low, high, d);
    else
      store_copied<false>(t, group, thread, row, low, high, d);
  }

  /// From column `First` on by ordinary stores.
  template <int First>
  PORTILE_PTX void store_direct(const tile_at& t, int row, bool low, bool high, int thread,
                                const float (&d)[S::sums]) const {
    char* const out = out_of(t);
    const bool pairs = in_pairs();
#pragma unroll
    for (int i = First / 2; i < S::sums; i += 2) {
      const int c = own_col(t, thread) + i / 4 * 8;
      if ((i / 2 % 2 ? high : low) && c < p.n) store_pair(out, pairs, row + i / 2 % 2 * 8, c, d[i], d[i + 1]);
    }
  }

  /// Through the warpgroup's staging pieces, 64 rows of 128 bytes each.
  template <bool F32>
  PORTILE_PTX void store_copied(const tile_at& t, int group, int thread, int row, bool low, bool high,
                                const float (&d)[S::sums]) const {
    constexpr int columns = F32 ? 32 : 64, pieces = S::tile_n / columns;
    using piece = shared_tile<64>;
    const std::uint32_t mine = staging + group * p.staging * gemm_config::piece_bytes;
    const int lane = thread % 32, warp = thread / 32;
    int slot = 0;
#pragma unroll
    for (int c = 0; c < pieces; ++c) {
      if (slot == 0) {
        // What was handed over before has left its pieces.
        if (thread == 0) ptx::bulk_wait_read<0>();
        ptx::named_barrier(1 + group, 128);
      }
      const std::uint32_t at = mine + slot * gemm_config::piece_bytes;
      if constexpr (F32) {
        const int r = warp * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < columns / 8; ++j) {
          const int i = (c * (columns / 8) + j) * 4;
          ptx::store_shared_f32x2(at + piece::offset(r, j * 32 + lane % 4 * 8), d[i], d[i + 1]);
          ptx::store_shared_f32x2(at + piece::offset(r + 8, j * 32 + lane % 4 * 8), d[i + 2], d[i + 3]);
        }
      } else {
        const int r = warp * 16 + lane % 16;
#pragma unroll
        for (int j = 0; j < columns / 8; j += 2) {
          const int i = (c * (columns / 8) + j) * 4;
          ptx::store_matrix_x4(at + piece::offset(r, (j + lane / 16) * 16), ptx::to_bf16x2(d[i], d[i + 1]),
                               ptx::to_bf16x2(d[i + 2], d[i + 3]), ptx::to_bf16x2(d[i + 4], d[i + 5]),
                               ptx::to_bf16x2(d[i + 6], d[i + 7]));
        }
      }
      ++slot;
      if (slot == p.staging || c == pieces - 1) {
        ptx::fence_async_proxy();
        ptx::named_barrier(1 + group, 128);
        if (thread == 0) {
          const int y = first_row(t, group);
          for (int s = 0; s < slot; ++s) {
            const int x = t.col0 + (c + 1 - slot + s) * columns;
            if (x < p.n && y < p.m)
              ptx::tma_store(&p.out, mine + s * gemm_config::piece_bytes, x, y, t.a_batch);
          }
          ptx::bulk_commit();
        }
        slot = 0;
      }
    }
    if constexpr (S::tile_n % columns != 0) store_direct<pieces * columns>(t, row, low, high, thread, d);
  }

  /// The cluster's blocks hold sums of shares of K of one tile: each block adds up and stores a share of the
  /// columns, block 0 first, block 1 next ... Stages are free: the producer waits until all is read.
  PORTILE_PTX void reduce_tile(const tile_at& t, int group, int thread, const float (&d)[S::sums]) const {
    constexpr int quads = S::sums / 4, threads = S::warps * 32;
    const std::uint32_t mine = tiles + ((S::in_turn ? 0 : group * 128) + thread) * 16;
    ptx::named_barrier(S::in_turn ? 1 + group : 3, threads);  // all have read the last stage
#pragma unroll
    for (int j = 0; j < quads; ++j)
      ptx::store_shared_f32x4(mine + j * (threads * 16), d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    char* const out = out_of(t);
    const bool pairs = in_pairs();
    const int row = own_row(t, group, thread);
    constexpr int ahead = 2;  // columns whose loads are on their way together
    for (int j0 = quads * rank / p.blocks, end = quads * (rank + 1) / p.blocks; j0 < end; j0 += ahead) {
      float4 v[ahead][max_split];
#pragma unroll
      for (int i = 0; i < ahead; ++i)
#pragma unroll
        for (int r = 0; r < max_split; ++r)
          if (r < p.blocks && j0 + i < end)
            v[i][r] = ptx::load_cluster_f32x4(ptx::map_shared(mine + (j0 + i) * (threads * 16), r));
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        const int c = own_col(t, thread) + (j0 + i) * 8;
        if (j0 + i >= end || c >= p.n) continue;
        float4 sum = v[i][0];
#pragma unroll
        for (int r = 1; r < max_split; ++r)
          if (r < p.blocks) sum.x += v[i][r].x, sum.y += v[i][r].y, sum.z += v[i][r].z, sum.w += v[i][r].w;
        if (row < t.row_end) {
          if (p.accumulate) load_old(out, pairs, row, c, sum.x, sum.y);
          store_pair(out, pairs, row, c, sum.x, sum.y);
        }
        if (row + 8 < t.row_end) {
          if (p.accumulate) load_old(out, pairs, row + 8, c, sum.z, sum.w);
          store_pair(out, pairs, row + 8, c, sum.z, sum.w);
        }
      }
    }
    // The sums have been used, so the loads are done.
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }

  /// What a warp that takes no part in a tile does while others reduce it.
  PORTILE_PTX void sit_out() const {
    if (p.use != cluster_use::split_k) return;
    for (int i = 0; i < 2; ++i) {
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
    }
  }

  /// All tiles of this block's cluster. `tiles_of`: count(), and (i) -> tile_at of tile i of the launch.
  template <class Tiles>
  PORTILE_PTX void run(const Tiles& tiles_of) const {
    const std::int64_t first = blockIdx.x / p.blocks, step = gridDim.x / p.blocks, count = tiles_of.count();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    stage_place at;
    if (group == 2) {
      ptx::registers_down<40>();
      for (std::int64_t i = first; i < count; i += step) {
        if (threadIdx.x == consumer_threads) load_tile(tiles_of(i), at);
        __syncwarp();
        sit_out();
      }
    } else {
      ptx::registers_up<232>();
      const int thread = static_cast<int>(threadIdx.x) % 128;
      int turn = 0;
      for (std::int64_t i = first; i < count; i += step, turn ^= 1) {
        if (S::in_turn && turn != group) {
          at.skip(steps(), p.stages);
          sit_out();
          continue;
        }
        if (S::in_turn && i != first) wait_turn(group);
        const tile_at t = tiles_of(i);
        float d[S::sums];
        multiply_tile(t, group, thread, i + step < count, at, d);
        if (p.use == cluster_use::split_k)
          reduce_tile(t, group, thread, d);
        else
          store_tile(t, group, thread, d);
      }
      if (thread == 0) ptx::bulk_wait_read<0>();
    }
    // Others may still write into this block's shared memory.
    if (p.blocks > 1 && p.use != cluster_use::split_k) sync_cluster();
  }
};

/// Tiles of one product.
template <class S>
struct product_tiles {
  const gemm_block<S>& block;
  PORTILE_PTX banded_order order() const { return {block.p.row_tiles, block.p.col_tiles, block.p.band}; }
  PORTILE_PTX std::int64_t count() const { return order().count(); }
  PORTILE_PTX tile_at operator()(std::int64_t i) const {
    const tile_place t = order()(i);
    return {block.row_of(t.row), block.col_of(t.col), block.p.m, 0, 0, false};
  }
};

/// Tiles of all experts' rows: only the device knows how many there are. Every block makes a table of them.
template <class S>
struct expert_tiles {
  const gemm_block<S>& block;
  struct table {
    int tiles[max_experts + 1];  ///< before expert e
    int begin[max_experts], end[max_experts];
    int disorder;  ///< an expert starts before the end of an earlier one
  };
  const table& of;

  /// All threads. `to`: shared memory.
  static PORTILE_PTX void make(const gpu::expert_rows& rows_of, table& to) {
    const int experts = static_cast<int>(rows_of.experts);
    for (int e = threadIdx.x; e < experts; e += gemm_threads) {
      const gpu::expert_rows::range r = rows_of(e);
      to.begin[e] = static_cast<int>(r.begin);
      to.end[e] = static_cast<int>(r.end);
      to.tiles[e + 1] = static_cast<int>((r.end - r.begin + S::tile_m - 1) / S::tile_m);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const int lane = threadIdx.x;
      int before = 0, last = 0;
      bool disorder = false;
      for (int base = 0; base < experts; base += 32) {
        const int e = base + lane;
        const bool some = e < experts && to.tiles[e + 1] > 0;
        int sum = some ? to.tiles[e + 1] : 0, end = some ? to.end[e] : 0;
        for (int d = 1; d < 32; d *= 2) {
          const int s = __shfl_up_sync(~0u, sum, d), m = __shfl_up_sync(~0u, end, d);
          if (lane >= d) sum += s, end = m > end ? m : end;
        }
        int earlier = __shfl_up_sync(~0u, end, 1);
        earlier = lane == 0 || last > earlier ? last : earlier;
        disorder |= some && to.begin[e] < earlier;
        if (e < experts) to.tiles[e + 1] = before + sum;
        before += __shfl_sync(~0u, sum, 31);
        end = __shfl_sync(~0u, end, 31);
        last = end > last ? end : last;
      }
      disorder = __any_sync(~0u, disorder);
      if (lane == 0) {
        to.tiles[0] = 0;
        to.disorder = disorder && !rows_of.masked;
      }
    }
    __syncthreads();
  }

  PORTILE_PTX banded_order order() const {
    return {of.tiles[block.p.rows_of.experts], block.p.col_tiles, block.p.band};
  }
  PORTILE_PTX std::int64_t count() const { return order().count(); }
  PORTILE_PTX tile_at operator()(std::int64_t i) const {
    const tile_place t = order()(i);
    // The last expert that starts at or before this tile and has one.
    int low = 0, high = static_cast<int>(block.p.rows_of.experts);
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (of.tiles[middle] <= t.row)
        low = middle;
      else
        high = middle;
    }
    const int row0 = of.begin[low] + (t.row - of.tiles[low]) * S::tile_m;
    return {row0, block.col_of(t.col), of.end[low], block.p.rows_of.masked ? low : 0, low, of.disorder != 0};
  }
};

template <class S>
__global__ void __launch_bounds__(gemm_threads, 1) gemm_nt_kernel(const __grid_constant__ gemm_params p) {
  extern __shared__ __align__(1024) unsigned char portile_gemm_shared[];
  const gemm_block<S> block(p, portile_gemm_shared);
  block.start();
  ptx::wait_for_previous_grid();
  ptx::let_next_grid_start();
  block.run(product_tiles<S>{block});
}

template <class S>
__global__ void __launch_bounds__(gemm_threads, 1)
    gemm_grouped_nt_kernel(const __grid_constant__ gemm_params p) {
  using tiles = expert_tiles<S>;
  extern __shared__ __align__(1024) unsigned char portile_gemm_shared[];
  __shared__ typename tiles::table table;
  const gemm_block<S> block(p, portile_gemm_shared);
  block.start();
  ptx::wait_for_previous_grid();
  ptx::let_next_grid_start();
  tiles::make(p.rows_of, table);
  block.run(tiles{block, table});
}

}  // namespace portile::cuda::sm90
