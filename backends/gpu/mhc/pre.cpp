#include <portile/kernels/mhc/pre.hpp>
#include <portile/kernels/mhc/pre_big_fuse.hpp>

#include "backends/gpu/mhc/mixes.hpp"
#include "backends/gpu/mhc/slices.hpp"
#include "backends/gpu/reduce.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

/// From the partial sums to the mixes: a run of lanes takes a token, a lane one mix of each kind and a row of
/// comb_mix.
struct mixes_kernel {
  static constexpr int threads = 128, ahead = 4;
  using params = mixes_params;

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    with_mult(p.affine.mult, [&](auto constant) { typed<decltype(constant)::value>(block, p); });
  }

  template <int mult, class Block>
  static PORTILE_DEVICE void typed(const Block& block, const params& p) {
    constexpr int lanes = sinkhorn_lanes<mult>, each = threads / lanes;
    const partial_sums& from = p.from;
    for (std::int64_t first = block.index() * each; first < from.tokens; first += block.grid() * each) {
      std::int64_t t = first + block.thread() / lanes;
      int i = block.thread() % lanes;
      const bool live = t < from.tokens && i < mult;
      if (t >= from.tokens) t = from.tokens - 1;
      if (i >= mult) i = mult - 1;
      // The pre mix, the post mix and the row of comb_mix; then the squares.
      constexpr int values = mult + 3;
      float sum[values] = {};
      const float* const products = from.out_mul + t * from.mul_token;
      const auto column = [&](int n) { return n < 2 ? n * mult + i : (2 + i) * mult + n - 2; };
      for (std::int64_t s = 0; s < from.splits; s += ahead) {
        float v[ahead][values];
        PORTILE_UNROLL
        for (int a = 0; a < ahead; ++a) {
          const bool there = s + a < from.splits;
          PORTILE_UNROLL
          for (int n = 0; n < values - 1; ++n)
            v[a][n] = there ? products[(s + a) * from.mul_split + column(n)] : 0.0f;
          v[a][values - 1] = there ? from.sqrsum[(s + a) * from.square_split + t * from.square_token] : 0.0f;
        }
        PORTILE_UNROLL
        for (int a = 0; a < ahead; ++a) {
          if (s + a >= from.splits) continue;
          PORTILE_UNROLL
          for (int n = 0; n < values; ++n) sum[n] += v[a][n];
        }
      }
      if (live && p.out_mul.data) {
        PORTILE_UNROLL
        for (int n = 0; n < values - 1; ++n) p.out_mul.at(t)[column(n)] = sum[n];
      }
      if (live && i == 0 && p.sqrsum) p.sqrsum[t] = sum[values - 1];

      store_mixes<mult>(block, p, t, i, live, sum);
    }
  }
};

/// What the mixes are made of but for where the sums and the pre mixes are.
template <class P>
mixes_params mixes_of(const P& p) {
  const std::int64_t mult = p.residual.extent(1);
  mixes_params q{};
  q.affine = {static_cast<const float*>(p.scale.data), static_cast<const float*>(p.base.data), mult};
  q.post_mix = rows<float>(p.post_mix);
  q.comb_mix = rows<float>(p.comb_mix);
  q.repeat = p.sinkhorn_repeat;
  q.size = static_cast<float>(mult * p.residual.extent(2));
  q.norm_eps = static_cast<float>(p.norm_eps);
  q.pre_eps = static_cast<float>(p.pre_eps);
  q.sinkhorn_eps = static_cast<float>(p.sinkhorn_eps);
  q.post_mult_value = static_cast<float>(p.post_mult_value);
  q.in_range = sinkhorn_in_range(mult, p.sinkhorn_repeat, p.sinkhorn_eps);
  return q;
}

/// From the partial sums on: the mixes, then the weighted streams. pre_mix is where they meet.
template <class P>
void finish(const context& c, const P& p, const partial_sums& from, const tensor& out_mul,
            const tensor& sqrsum, const rows<float>& pre_mix, bool pre_mix_aligned) {
  mixes_params q = mixes_of(p);
  q.from = from;
  q.pre_mix = pre_mix;
  if (out_mul) q.out_mul = rows<float>(out_mul);
  q.sqrsum = static_cast<float*>(sqrsum.data);
  const int each = mixes_kernel::threads / lanes_of(p.residual.extent(1));
  gpu::launch<mixes_kernel>(c, numeric::ceil_div(p.residual.extent(0), each), 0, q);
  launch_apply_mix(c, p.residual, rows<const float>(pre_mix.data, pre_mix.token, 0), pre_mix_aligned,
                   p.layer_input);
}

/// Workspace: [tokens, mhc_mult] mixes, then the partial sums at a multiple of 16 bytes.
std::uint64_t mixes_bytes(const tensor& residual) {
  return static_cast<std::uint64_t>(numeric::align_up(residual.extent(0) * residual.extent(1) * 4, 16));
}
template <class P>
partial_sums own_partials(const portile_device_info& device, const P& p, std::int64_t splits, void* memory) {
  const std::int64_t tokens = p.residual.extent(0), channels = p.residual.extent(1) * p.residual.extent(2);
  auto* const after = memory ? static_cast<unsigned char*>(memory) + mixes_bytes(p.residual) : nullptr;
  return {after, kept_splits(device, tokens, std::min(splits, channels), channels), tokens,
          portile::mhc::mixes_of(p.residual.extent(1))};
}
rows<float> own_mixes(const context& c, const tensor& residual) {
  return {static_cast<float*>(c.call.workspace), residual.extent(1), 0};
}

struct pre_simt {
  static std::uint64_t workspace(const portile_device_info& device, const mhc::pre& p) {
    return mixes_bytes(p.residual) + own_partials(device, p, p.n_splits, nullptr).bytes();
  }
  static void launch(const context& c, const mhc::pre& p) {
    if (p.residual.extent(0) == 0) return;
    const partial_sums sums = own_partials(*c.call.device, p, p.n_splits, c.call.workspace);
    const std::int64_t channels = p.fn.extent(1);
    launch_partial_sums(c, p.residual, p.fn, p.norm_weight, channels, std::min(p.n_splits, channels), sums);
    if (p.pre_mix)
      finish(c, p, sums, p.out_mul, p.sqrsum, rows<float>(p.pre_mix), whole_chunks(p.pre_mix));
    else
      finish(c, p, sums, p.out_mul, p.sqrsum, own_mixes(c, p.residual), p.residual.extent(1) % 4 == 0);
  }
};

struct pre_big_fuse_simt {
  static std::uint64_t workspace(const portile_device_info& device, const mhc::pre_big_fuse& p) {
    if (p.out_mul_splitted) return mixes_bytes(p.residual);
    return mixes_bytes(p.residual) +
           (in_slices(device, p) ? slices(p, nullptr) : own_partials(device, p, p.fn_splits, nullptr))
               .bytes();
  }
  static void launch(const context& c, const mhc::pre_big_fuse& p) {
    if (p.residual.extent(0) == 0) return;
    partial_sums sums;
    if (p.out_mul_splitted) {
      const tensor &mul = p.out_mul_splitted, &squares = p.sqrsum_splitted;
      sums.out_mul = static_cast<float*>(mul.data);
      sums.sqrsum = static_cast<float*>(squares.data);
      sums.splits = mul.extent(0);
      sums.tokens = mul.extent(1);
      sums.mixes = mul.extent(2);
      sums.mul_split = mul.stride(0);
      sums.mul_token = mul.stride(1);
      sums.square_split = squares.stride(0);
      sums.square_token = 1;
    } else if (in_slices(*c.call.device, p)) {
      sums = slices(p, c.call.workspace);
      if (start_slices(c, p, sums) && !c.prepare) return;
    } else {
      sums = own_partials(*c.call.device, p, p.fn_splits, c.call.workspace);
      const std::int64_t channels = p.fn.extent(1);
      launch_partial_sums(c, p.residual, p.fn, {}, channels, std::min(p.fn_splits, channels), sums);
    }
    finish(c, p, sums, {}, {}, own_mixes(c, p.residual), p.residual.extent(1) % 4 == 0);
  }

 private:
  using alone = slices_kernel<false, false>;

  /// Whether the products are summed in slices of the channels. Whether in clusters is up to the launch and
  /// to the addresses, and does not change the bits.
  static bool in_slices(const portile_device_info& device, const mhc::pre_big_fuse& p) {
    const std::int64_t hidden = p.residual.extent(2);
    // On the H200 one pass is faster at 512 tokens (38 us, not 49) and slower at 8,192 (321, not 309): its
    // clusters run one tile of tokens after the other, where two passes fill the memory's bandwidth.
    return p.residual.extent(0) <= 2048 && has_clusters(device) && has_mma_tf32(device) &&
           p.residual.extent(1) == alone::streams && hidden % (alone::cluster * chunk) == 0 && hidden > 0 &&
           hidden <= alone::cluster * alone::max_slice;
  }
  static partial_sums slices(const mhc::pre_big_fuse& p, void* memory) {
    auto* const after = memory ? static_cast<unsigned char*>(memory) + mixes_bytes(p.residual) : nullptr;
    return {after, alone::cluster, p.residual.extent(0), alone::mixes};
  }
  /// True when that was all; else the sums of the slices are there.
  static bool start_slices(const context& c, const mhc::pre_big_fuse& p, const partial_sums& sums) {
    slices_params q{};
    q.residual = rows<const bf16>(p.residual);
    q.fn = static_cast<const float*>(p.fn.data);
    q.fn_stride = p.fn.stride(0);
    q.hidden = p.residual.extent(2);
    q.tiles = numeric::ceil_div(p.residual.extent(0), alone::tile);
    q.mixes = mixes_of(p);
    q.mixes.from = sums;
    q.out = rows<bf16>(p.layer_input);
    q.kept = sums.out_mul;
    q.slice = static_cast<int>(q.hidden / alone::cluster);
    q.stream_units = narrow_divider(q.slice / chunk);
    q.aligned = whole_chunks(p.residual);
    q.fn_aligned = whole_chunks(p.fn);
    bool done = false;
    if (q.aligned && whole_chunks(p.layer_input))
      done = q.slice == alone::max_slice ? start_clusters<true>(c, q) : start_clusters<false>(c, q);
    if (!done || c.prepare)
      gpu::launch<alone>(c, std::min<std::int64_t>(q.tiles, 8) * alone::cluster, alone::shared_bytes(q.slice),
                         q);
    return done;
  }
  template <bool full>
  static bool start_clusters(const context& c, const slices_params& q) {
    using kernel = slices_kernel<true, full>;
    const std::size_t shared = kernel::shared_bytes(q.slice);
    return shared <= static_cast<std::size_t>(c.call.device->max_shared) &&
           launch_clusters<kernel>(c, q.tiles, shared, q);
  }
};

}  // namespace

extern const portile_implementation mhc_pre_simt;
const portile_implementation mhc_pre_simt = make_simt<mhc::pre, pre_simt>();
extern const portile_implementation mhc_pre_big_fuse_simt;
const portile_implementation mhc_pre_big_fuse_simt = make_simt<mhc::pre_big_fuse, pre_big_fuse_simt>();

}  // namespace portile::gpu
