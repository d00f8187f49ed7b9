#include <portile/kernels/mhc/multilayer_recompute.hpp>

#include "backends/gpu/mhc.hpp"

namespace portile::gpu {
namespace {

using namespace mhc_steps;

/// A thread takes eight channels of a token through the layers; their streams stay in registers, as bf16.
/// `exact`: there are `most` of them, and the mixes are aligned.
template <int most, bool aligned, bool exact>
struct layers_kernel {
  static constexpr int threads = exact ? 128 : 256, min_blocks = exact ? 5 : most > 4 ? 1 : 2;
  static constexpr int max_layers = 24;  ///< of a launch: the pointers travel with the parameters
  struct layer {
    rows<const float> pre_mix, post_mix, comb_mix;
    rows<const bf16> layer_output;
    rows<bf16> layer_input, residual;
  };
  struct params {
    layer layers[max_layers];
    rows<const bf16> initial;
    std::int64_t mult, chunks;
    divider row_chunks;
    int count, posts;  ///< layers of this launch; those of them with a new residual
    bool mixes_aligned;
  };
  static_assert(sizeof(params) <= 4096);

  static PORTILE_DEVICE bool there(const params& p, int stream) { return exact || stream < p.mult; }

  template <class Block>
  static PORTILE_DEVICE void run(Block& block, const params& p) {
    for (std::int64_t at = block.index() * threads + block.thread(); at < p.chunks;
         at += block.grid() * threads) {
      const std::int64_t t = p.row_chunks.quotient(at), h = (at - t * p.row_chunks.value()) * chunk;
      words4 stream[most];
      PORTILE_UNROLL
      for (int i = 0; i < most; ++i) {
        stream[i] = words4{};
        if (there(p, i)) stream[i] = load_chunk<aligned>(p.initial.at(t, i) + h);
      }
      words4 following{};
      if (p.posts > 0) following = load_chunk<aligned>(p.layers[0].layer_output.at(t) + h);
      for (int l = 0; l < p.count; ++l) {
        const layer& a = p.layers[l];
        const bool post = l < p.posts;
        const words4 x = following;
        if (l + 1 < p.posts) following = load_chunk<aligned>(p.layers[l + 1].layer_output.at(t) + h);
        float pre_mix[most], post_mix[most], sum[chunk] = {};
        load_all(a.pre_mix.at(t), p, pre_mix);
        if (post) load_all(a.post_mix.at(t), p, post_mix);
        PORTILE_UNROLL
        for (int i = 0; i < most; ++i)
          if (there(p, i)) add_scaled(pre_mix[i], stream[i], sum);
        store_chunk<aligned>(a.layer_input.at(t) + h, round_chunk(sum));
        if (!post) continue;

        float comb[most][most];
        PORTILE_UNROLL
        for (int i = 0; i < most; ++i)
          if (there(p, i)) load_all(a.comb_mix.at(t, i), p, comb[i]);
        words4 next[most];
        PORTILE_UNROLL
        for (int o = 0; o < most; ++o) {
          if (!there(p, o)) continue;
          float v[chunk];
          PORTILE_UNROLL
          for (int e = 0; e < chunk; ++e) v[e] = post_mix[o] * lane_value(x, e);
          PORTILE_UNROLL
          for (int i = 0; i < most; ++i)
            if (there(p, i)) add_scaled(comb[i][o], stream[i], v);
          next[o] = round_chunk(v);
          store_chunk<aligned>(a.residual.at(t, o) + h, next[o]);
        }
        PORTILE_UNROLL
        for (int o = 0; o < most; ++o)
          if (there(p, o)) stream[o] = next[o];
      }
    }
  }

  static PORTILE_DEVICE void load_all(const float* from, const params& p, float (&v)[most]) {
    PORTILE_UNROLL
    for (int i = 0; i < most; i += batch) {
      float w[batch];
      load_weights(from + i, p.mult - i, exact || (p.mixes_aligned && i + batch <= p.mult), w);
      PORTILE_UNROLL
      for (int n = 0; n < batch; ++n) v[i + n] = w[n];
    }
  }
};

struct multilayer_recompute_simt {
  static void launch(const context& c, const mhc::multilayer_recompute& p) {
    const std::int64_t mult = p.initial_residual.extent(1);
    if (p.initial_residual.numel() == 0) return;
    if (mult > portile::mhc::max_mult) return one_by_one(c, p);
    bool aligned = whole_chunks(p.initial_residual);
    for (std::int64_t l = 0; l < p.pre_mix.size; ++l) aligned = aligned && whole_chunks(p.layer_input[l]);
    for (std::int64_t l = 0; l < p.layer_output.size; ++l)
      aligned = aligned && whole_chunks(p.layer_output[l]) && whole_chunks(p.residual[l]);
    bool mixes_aligned = true;
    for (std::int64_t l = 0; l < p.pre_mix.size; ++l)
      mixes_aligned = mixes_aligned && whole_chunks(p.pre_mix[l]);
    for (std::int64_t l = 0; l < p.layer_output.size; ++l)
      mixes_aligned = mixes_aligned && whole_chunks(p.post_mix[l]) && whole_chunks(p.comb_mix[l]);
    if (mult == 4 && aligned && mixes_aligned)
      fused<4, true, true>(c, p, mixes_aligned);
    else if (mult <= 4)
      aligned ? fused<4, true>(c, p, mixes_aligned) : fused<4, false>(c, p, mixes_aligned);
    else
      aligned ? fused<8, true>(c, p, mixes_aligned) : fused<8, false>(c, p, mixes_aligned);
  }

 private:
  /// The streams before layer l.
  static const tensor& before(const mhc::multilayer_recompute& p, std::int64_t l) {
    return l == 0 ? p.initial_residual : p.residual[l - 1];
  }

  template <int most, bool aligned, bool exact = false>
  static void fused(const context& c, const mhc::multilayer_recompute& p, bool mixes_aligned) {
    using kernel = layers_kernel<most, aligned, exact>;
    typename kernel::params q{};
    q.mult = p.initial_residual.extent(1);
    const std::int64_t row_chunks = p.initial_residual.extent(2) / chunk;
    q.chunks = p.initial_residual.extent(0) * row_chunks;
    q.row_chunks = divider(row_chunks, q.chunks);
    for (std::int64_t first = 0; first < p.pre_mix.size; first += kernel::max_layers) {
      q.initial = rows<const bf16>(before(p, first));
      q.count = static_cast<int>(std::min<std::int64_t>(kernel::max_layers, p.pre_mix.size - first));
      q.posts = static_cast<int>(std::min<std::int64_t>(kernel::max_layers, p.layer_output.size - first));
      q.mixes_aligned = mixes_aligned;
      for (int n = 0; n < q.count; ++n) {
        const std::int64_t l = first + n;
        auto& a = q.layers[n];
        a.pre_mix = rows<const float>(p.pre_mix[l]);
        a.layer_input = rows<bf16>(p.layer_input[l]);
        if (n >= q.posts) continue;
        a.layer_output = rows<const bf16>(p.layer_output[l]);
        a.post_mix = rows<const float>(p.post_mix[l]);
        a.comb_mix = rows<const float>(p.comb_mix[l]);
        a.residual = rows<bf16>(p.residual[l]);
      }
      gpu::launch<kernel>(c, numeric::ceil_div(q.chunks, kernel::threads), 0, q);
    }
  }

  /// More streams than registers hold.
  static void one_by_one(const context& c, const mhc::multilayer_recompute& p) {
    for (std::int64_t l = 0; l < p.pre_mix.size; ++l) {
      launch_apply_mix(c, before(p, l), rows<const float>(p.pre_mix[l]), whole_chunks(p.pre_mix[l]),
                       p.layer_input[l]);
      if (l < p.layer_output.size)
        launch_post(c, p.layer_output[l], before(p, l), p.post_mix[l], p.comb_mix[l], p.residual[l]);
    }
  }
};

}  // namespace

extern const portile_implementation mhc_multilayer_recompute_simt;
const portile_implementation mhc_multilayer_recompute_simt =
    make_simt<mhc::multilayer_recompute, multilayer_recompute_simt>();

}  // namespace portile::gpu
