#include "block/block.hpp"

#include <chrono>
#include <cmath>

#include <portile/core/numeric/integer.hpp>

#include "block/text.hpp"
#include "block/weights.hpp"

namespace portile::block {
namespace {

constexpr std::int64_t ngram = 3;
constexpr std::int64_t vocabulary = 4096;   ///< rows of the embedding table
constexpr std::int64_t memory_rows = 1009;  ///< about how many rows each n-gram table has
constexpr std::int64_t group = 128;         ///< channels per FP8 scale
constexpr std::int64_t row_alignment = 16;  ///< of an expert's rows

// Bounds on a difference from the host reference, as a share of the row's largest magnitude. f32: an fp32 sum
// in another order; bf16: that and one rounding to 8 bits; fp8: 2^-11 of sum |a||b| on top.
constexpr double f32_bound = 1e-4, bf16_bound = 0x1p-7, fp8_bound = 0x1p-6;

void need(bool fine, const std::string& option, std::int64_t value, const std::string& rule) {
  if (!fine) throw error(status_code::invalid_argument, option + " = " + std::to_string(value) + ": " + rule);
}

void check_sizes(const settings& s, std::int64_t words) {
  need(s.tokens >= 0, "--tokens", s.tokens, "must be positive");
  need(s.tokens <= words, "--tokens", s.tokens, "the input has only " + std::to_string(words) + " words");
  need(s.hidden > 0 && s.hidden % 256 == 0 && s.hidden <= 65536, "--hidden", s.hidden,
       "must be a multiple of 256, at most 65536");
  need(s.experts > 0 && s.experts % 4 == 0 && s.experts <= 1024, "--experts", s.experts,
       "must be a multiple of 4, at most 1024");
  need(s.topk > 0 && s.topk <= std::min<std::int64_t>(s.experts, 32), "--topk", s.topk,
       "must be 1 to 32 and at most --experts");
  need(s.layers > 0 && s.layers <= 1000, "--layers", s.layers, "must be 1 to 1000");
  need(s.streams > 0 && s.streams <= 8, "--streams", s.streams, "must be 1 to 8");
  need(s.width > 0 && s.width % 128 == 0 && s.width <= 65536, "--width", s.width,
       "must be a multiple of 128, at most 65536");
}

struct layer_weights {
  tensor multipliers, vocab_sizes, offsets, table;   // n-gram memory
  tensor weight_hidden, weight_embed, weight_fused;  // its gate
  tensor fn, scale, base;                            // hyper-connections
  tensor norm, router, bias;
  tensor up, up_sf, down, down_sf;  // experts, e4m3
};

class network {
 public:
  network(const settings& s, const std::vector<std::int32_t>& words, queue q)
      : s_(s), T_(s.tokens), H_(s.hidden), m_(s.streams), q_(q), memory_(q) {
    ids_ = memory_.upload(ngrams(words, T_, ngram), {T_, ngram});
    std::vector<std::int32_t> rows(static_cast<std::size_t>(T_));
    for (std::size_t t = 0; t < rows.size(); ++t) rows[t] = words[t] % static_cast<std::int32_t>(vocabulary);
    rows_ = memory_.upload(rows, {T_, 1});
    embedding_ = normal_bf16(0, {vocabulary, H_}, 1.0);
    for (std::int64_t l = 0; l < s.layers; ++l) layers_.push_back(make_layer(l));
  }

  void run(runner& r) {
    const tensor x = memory_.make(dtype::bf16, {T_, H_});
    engram::gather lookup;
    lookup.table = embedding_;
    lookup.index = rows_;
    lookup.out = x;
    r.run("token embedding", lookup, {.bytes = 4.0 * static_cast<double>(T_ * H_)});
    residual_ = memory_.make(dtype::bf16, {T_, m_, H_});
    mhc::expand expand;
    expand.x = x;
    expand.out = residual_;
    expand.mhc_mult = m_;
    r.run("expand to streams", expand);
    for (std::int64_t l = 0; l < s_.layers; ++l) {
      remember(r, layers_[static_cast<std::size_t>(l)]);
      transform(r, layers_[static_cast<std::size_t>(l)]);
    }
  }

  const tensor& residual() const { return residual_; }

 private:
  // Columns of the n-gram memory: as many as make every token's keys and values.
  std::int64_t tables() const { return m_ + 1; }
  std::int64_t columns() const { return (ngram - 1) * tables(); }

  tensor normal_bf16(std::uint64_t stream, std::initializer_list<std::int64_t> extents, double deviation,
                     float shift = 0) {
    std::vector<numeric::bf16> v(
        static_cast<std::size_t>(make_tensor(nullptr, dtype::bf16, extents).numel()));
    weight_stream(stream, deviation).fill(v.data(), static_cast<std::int64_t>(v.size()), shift);
    return memory_.upload(v, extents);
  }
  tensor normal_f32(std::uint64_t stream, std::initializer_list<std::int64_t> extents, double deviation,
                    float shift = 0) {
    std::vector<float> v(static_cast<std::size_t>(make_tensor(nullptr, dtype::f32, extents).numel()));
    weight_stream(stream, deviation).fill(v.data(), static_cast<std::int64_t>(v.size()), shift);
    return memory_.upload(v, extents);
  }

  layer_weights make_layer(std::int64_t l) {
    const std::uint64_t stream = static_cast<std::uint64_t>(l + 1) << 32;
    layer_weights w;
    std::vector<std::int64_t> multipliers;
    for (std::int64_t i = 0; i < ngram; ++i)
      multipliers.push_back(static_cast<std::int64_t>(fnv1a(&i, sizeof i, fnv_start + stream) >> 16));
    std::vector<std::int32_t> sizes, offsets;
    std::int32_t total = 0;
    for (std::int64_t c = 0; c < columns(); ++c) {
      sizes.push_back(static_cast<std::int32_t>(memory_rows + 2 * c));
      offsets.push_back(total);
      total += sizes.back();
    }
    w.multipliers = memory_.upload(multipliers, {1, ngram});
    w.vocab_sizes = memory_.upload(sizes, {1, ngram - 1, tables()});
    w.offsets = memory_.upload(offsets, {1, columns()});
    w.table = normal_bf16(stream + 1, {total, H_ / (ngram - 1)}, 1.0);
    w.weight_hidden = normal_bf16(stream + 2, {m_, H_}, 0.1, 1.0f);
    w.weight_embed = normal_bf16(stream + 3, {m_, H_}, 0.1, 1.0f);
    w.weight_fused = memory_.make(dtype::f32, {m_, H_});

    const std::int64_t m3 = m_ * (m_ + 2);
    w.fn = normal_f32(stream + 4, {m3, m_ * H_}, 1.0 / std::sqrt(static_cast<double>(m_ * H_)));
    w.scale = normal_f32(stream + 5, {3}, 0.1, 1.0f);
    w.base = normal_f32(stream + 6, {m3}, 0.1);
    w.norm = normal_bf16(stream + 7, {H_}, 0.1, 1.0f);
    w.router = normal_bf16(stream + 8, {s_.experts, H_}, 1.0 / std::sqrt(static_cast<double>(H_)));
    w.bias = normal_f32(stream + 9, {s_.experts}, 0.01);
    w.up = memory_.make(dtype::e4m3, {s_.experts, 2 * s_.width, H_});
    w.up_sf = memory_.make(dtype::f32, {s_.experts, 2 * s_.width / group, numeric::ceil_div(H_, group)});
    w.down = memory_.make(dtype::e4m3, {s_.experts, H_, s_.width});
    w.down_sf = memory_.make(dtype::f32, {s_.experts, numeric::ceil_div(H_, group), s_.width / group});
    make_experts(stream + 16, w.up, w.up_sf);
    make_experts(stream + 16 + static_cast<std::uint64_t>(s_.experts), w.down, w.down_sf);
    return w;
  }

  // Generates and quantises one expert at a time on the host: the bf16 weights of all experts never exist
  // together.
  void make_experts(std::uint64_t stream, const tensor& codes, const tensor& scales) {
    const std::int64_t N = codes.extent(1), K = codes.extent(2);
    std::vector<numeric::bf16> dense(static_cast<std::size_t>(N * K));
    std::vector<numeric::e4m3> out(dense.size());
    std::vector<float> out_sf(static_cast<std::size_t>(scales.extent(1) * scales.extent(2)));
    queue host{cpu_selector};
    quant::per_block_cast cast;
    cast.x = make_tensor(dense.data(), {N, K});
    cast.out = make_tensor(out.data(), {N, K});
    cast.out_sf = make_tensor(out_sf.data(), {scales.extent(1), scales.extent(2)});
    cast.block_rows = cast.block_cols = group;
    for (std::int64_t e = 0; e < codes.extent(0); ++e) {
      weight_stream(stream + static_cast<std::uint64_t>(e), 1.0 / std::sqrt(static_cast<double>(K)))
          .fill(dense.data(), N * K);
      portile::run(host, cast);
      memcpy(q_, static_cast<numeric::e4m3*>(codes.data) + e * codes.stride(0), out.data(), out.size());
      memcpy(q_, static_cast<float*>(scales.data) + e * scales.stride(0), out_sf.data(),
             out_sf.size() * sizeof(float));
      q_.wait();
    }
  }

  // The n-gram memory: hashed rows become keys and a value for every token, gated into the residual streams.
  void remember(runner& r, const layer_weights& w) {
    const tensor index = memory_.make(dtype::i32, {1, T_, columns()});
    engram::hash hash;
    hash.ngram_token_ids = ids_;
    hash.multipliers = w.multipliers;
    hash.vocab_sizes = w.vocab_sizes;
    hash.offsets = w.offsets;
    hash.out = index;
    r.run("n-gram hash", hash);

    const tensor kv = memory_.make(dtype::bf16, {T_, (m_ + 1) * H_});
    engram::gather gather;
    gather.table = w.table;
    gather.index = reshape(index, {T_, columns()});
    gather.out = kv;
    r.run("n-gram gather", gather, {.bytes = 4.0 * static_cast<double>(kv.numel())});

    engram::fused_weight fuse;
    fuse.weight_hidden = w.weight_hidden;
    fuse.weight_embed = w.weight_embed;
    fuse.weight_fused = w.weight_fused;
    r.run("n-gram gate weight", fuse);

    const tensor out = memory_.make(dtype::bf16, {T_, m_, H_});
    engram::gate gate;
    gate.hidden_states = residual_;
    gate.kv = reshape(kv, {T_, m_ + 1, H_});
    gate.weight_fused = w.weight_fused;
    gate.out = out;
    gate.eps = 1e-20;
    gate.clamp_value = 1e-6;
    r.run("n-gram gate", gate, {.bound = bf16_bound});
    residual_ = out;
  }

  // Hyper-connections around the experts: R' = post (x) experts(norm(pre . R)) + comb^T R.
  void transform(runner& r, const layer_weights& w) {
    const std::int64_t m3 = m_ * (m_ + 2);
    const tensor mixes = memory_.make(dtype::f32, {T_, m3});
    mhc::pre_norm_fn mix;
    mix.residual = residual_;
    mix.fn = w.fn;
    mix.out = mixes;
    mix.norm_eps = 1e-6;
    r.run("mhc mixes", mix, {.bound = f32_bound, .flop = 2.0 * static_cast<double>(T_ * m_ * H_ * (m3 + 1))});

    const tensor pre = memory_.make(dtype::f32, {T_, m_}), post = memory_.make(dtype::f32, {T_, m_});
    const tensor comb = memory_.make(dtype::f32, {T_, m_, m_}),
                 doubly = memory_.make(dtype::f32, {T_, m_, m_});
    mhc::pre_split_mixes split;
    split.x = mixes;
    split.scale = w.scale;
    split.base = w.base;
    split.pre_mix = pre;
    split.post_mix = post;
    split.comb_mix = comb;
    split.post_mult_value = 2.0;
    split.pre_eps = 1e-2;
    r.run("mhc split", split, {.bound = f32_bound});

    mhc::sinkhorn sinkhorn;
    sinkhorn.x = comb;
    sinkhorn.out = doubly;
    sinkhorn.repeat = 10;
    sinkhorn.eps = 1e-6;
    r.run("mhc sinkhorn", sinkhorn, {.bound = f32_bound});

    const tensor input = memory_.make(dtype::bf16, {T_, H_});
    mhc::pre_apply_mix apply;
    apply.x = residual_;
    apply.mix = pre;
    apply.out = input;
    r.run("mhc pre", apply, {.bound = bf16_bound});

    const tensor normed = memory_.make(dtype::bf16, {T_, H_});
    norm::forward norm;
    norm.x = input;
    norm.weight = w.norm;
    norm.eps = 1e-6;
    norm.out = normed;
    r.run("norm", norm, {.bound = bf16_bound});

    const tensor out = memory_.make(dtype::bf16, {T_, m_, H_});
    mhc::post merge;
    merge.x = experts(r, w, normed);
    merge.residual = residual_;
    merge.post_mix = post;
    merge.comb_mix = doubly;
    merge.out = out;
    r.run("mhc post", merge, {.bound = bf16_bound});
    residual_ = out;
  }

  tensor experts(runner& r, const layer_weights& w, const tensor& x) {
    const std::int64_t E = s_.experts, k = s_.topk, F = s_.width;
    const tensor logits = memory_.make(dtype::f32, {T_, E});
    gemm::nt router;
    router.a = x;
    router.b = w.router;
    router.out = logits;
    r.run("router", router, {.bound = f32_bound, .flop = 2.0 * static_cast<double>(T_ * E * H_)});

    const tensor ids = memory_.make(dtype::i64, {T_, k});
    moe::topk_gate gate;
    gate.scores = logits;
    gate.topk_idx = ids;
    gate.num_topk = k;
    r.run("top-k gate", gate);

    // The routing is fixed to those ids; this stage turns their logits into weights.
    const tensor routed = memory_.make(dtype::i64, {T_, k}), weights = memory_.make(dtype::f32, {T_, k});
    const tensor fixed = memory_.make(dtype::boolean, {T_});
    memset(q_, fixed.data, 1, static_cast<std::size_t>(T_));
    moe::top2_sum_gate score;
    score.logits = logits;
    score.bias = w.bias;
    score.unmapped_topk_idx = ids;
    score.fix_routing_mask = fixed;
    score.topk_idx = routed;
    score.topk_weights = weights;
    score.num_topk = k;
    score.scoring_func = "sigmoid";
    r.run("gate weights", score, {.bound = f32_bound});

    moe::get_fused_mapping map;
    const std::int64_t N =
        numeric::align_up(T_ * k + std::min(E, T_ * k) * (row_alignment - 1), row_alignment);
    map.topk_idx = routed;
    map.num_experts = E;
    map.alignment = row_alignment;
    map.num_expanded_tokens = N;
    map.pos_to_expert = memory_.make(dtype::i32, {N});
    map.pos_to_token = memory_.make(dtype::i32, {N});
    map.pos_to_token_topk = memory_.make(dtype::i32, {N});
    map.token_topk_to_pos = memory_.make(dtype::i32, {T_, k});
    map.expert_start = memory_.make(dtype::i32, {E});
    map.expert_end = memory_.make(dtype::i32, {E});
    map.num_tokens_per_expert = memory_.make(dtype::i32, {E});
    map.num_live_per_expert = memory_.make(dtype::i32, {E});
    r.run("mapping", map);

    quant::per_token_cast cast;
    cast.x = x;
    cast.out = memory_.make(dtype::e4m3, {T_, H_});
    cast.out_sf = memory_.make(dtype::f32, {T_, numeric::ceil_div(H_, group)});
    cast.num_per_channels = group;
    r.run("fp8 cast", cast);

    moe::expand_to_fused_with_sf expand;
    expand.x = cast.out;
    expand.x_sf = cast.out_sf;
    expand.num_per_channels = group;
    expand.token_topk_to_pos = map.token_topk_to_pos;
    expand.pos_to_expert = map.pos_to_expert;
    expand.out = memory_.make(dtype::e4m3, {N, H_});
    expand.out_sf = memory_.make(dtype::f32, {N, numeric::ceil_div(H_, group)});
    r.run("expand", expand);

    const tensor hidden = memory_.make(dtype::bf16, {N, 2 * F});
    r.run("experts up", grouped(expand.out, expand.out_sf, w.up, w.up_sf, map, hidden),
          {.bound = fp8_bound, .flop = flop(2 * F, H_)});

    quant::swiglu_forward_and_per_token_cast swiglu;
    swiglu.x = hidden;
    swiglu.pos_to_expert = map.pos_to_expert;
    swiglu.out = memory_.make(dtype::e4m3, {N, F});
    swiglu.out_sf = memory_.make(dtype::f32, {N, F / group});
    swiglu.num_per_channels = group;
    r.run("swiglu and cast", swiglu);

    const tensor expanded = memory_.make(dtype::bf16, {N, H_});
    r.run("experts down", grouped(swiglu.out, swiglu.out_sf, w.down, w.down_sf, map, expanded),
          {.bound = fp8_bound, .flop = flop(H_, F)});

    moe::reduce_fused reduce;
    reduce.x = expanded;
    reduce.topk_weights = weights;
    reduce.token_topk_to_pos = map.token_topk_to_pos;
    reduce.out = memory_.make(dtype::bf16, {T_, H_});
    r.run("reduce", reduce);
    return reduce.out;
  }

  double flop(std::int64_t N, std::int64_t K) const {
    return 2.0 * static_cast<double>(T_ * s_.topk * N * K);
  }

  static gemm::grouped_nt grouped(const tensor& a, const tensor& a_sf, const tensor& b, const tensor& b_sf,
                                  const moe::get_fused_mapping& map, const tensor& out) {
    gemm::grouped_nt g;
    g.a = a;
    g.a_sf = a_sf;
    g.b = b;
    g.b_sf = b_sf;
    g.expert_start = map.expert_start;
    g.expert_end = map.expert_end;
    g.num_live_per_expert = map.num_live_per_expert;
    g.out = out;
    return g;
  }

  settings s_;
  std::int64_t T_, H_, m_;
  queue q_;
  store memory_;
  tensor ids_, rows_, embedding_, residual_;
  std::vector<layer_weights> layers_;
};

}  // namespace

outcome run_block(const settings& given, queue q, const std::function<void(double)>& progress) {
  using clock = std::chrono::steady_clock;
  settings s = given;
  const std::vector<std::int32_t> words = read_tokens(s.input);
  check_sizes(s, static_cast<std::int64_t>(words.size()));
  if (s.tokens == 0) s.tokens = std::min<std::int64_t>(256, static_cast<std::int64_t>(words.size()));

  const auto start = clock::now();
  network n(s, words, q);
  const auto ready = clock::now();
  const double stages = 2.0 + 20.0 * static_cast<double>(s.layers);
  double done = 0;
  runner r(q, s.compare, [&](const stage&) {
    if (progress) progress(std::min(1.0, ++done / stages));
  });
  n.run(r);
  const auto end = clock::now();

  outcome o;
  o.tokens = s.tokens;
  o.device = q.get_device().text();
  o.stages = r.stages();
  o.within_bounds = r.within_bounds();
  o.setup_seconds = std::chrono::duration<double>(ready - start).count();
  o.run_seconds = std::chrono::duration<double>(end - ready).count();
  const tensor& final = n.residual();
  std::vector<numeric::bf16> bits(static_cast<std::size_t>(final.numel()));
  memcpy(q, bits.data(), final.data, bits.size() * sizeof(numeric::bf16));
  q.wait();
  o.digest = fnv1a(bits.data(), bits.size() * sizeof(numeric::bf16));
  double sum = 0;
  for (numeric::bf16 b : bits) {
    const double v = numeric::to_float(b);
    sum += v * v;
    o.largest = std::max(o.largest, std::fabs(v));
  }
  o.norm = std::sqrt(sum);
  return o;
}

}  // namespace portile::block
