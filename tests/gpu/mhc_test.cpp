// mhc operations against the reference: any mhc_mult, hidden size, strides and offsets.
#include <cmath>
#include <set>

#include "gpu/against_reference.hpp"
#include "support/random.hpp"

using namespace portile;
using namespace portile::test;

namespace {

struct maker {
  memory& m;
  randomness& r;
  bool plain;  ///< contiguous and aligned

  tensor make(dtype type, std::vector<std::int64_t> extents, bool positive = false) {
    std::int64_t pitch = 1, count = 1;
    std::vector<std::int64_t> strides(extents.size());
    for (std::size_t i = extents.size(); i-- > 0;) {
      strides[i] = pitch;
      pitch = pitch * extents[i] +
              (plain || r.one_in(2) || extents.size() == 1 ? 0 : r.pick<std::int64_t>({1, 2, 4, 8, 24}));
      count *= extents[i];
    }
    const std::int64_t shift = plain || r.one_in(2) ? 0 : r.pick<std::int64_t>({1, 2, 3, 4, 8});
    tensor whole = m.make(type, {count > 0 ? pitch + shift : 0});
    for (std::int64_t i = 0; i < whole.numel(); ++i) {
      float v = static_cast<float>(r.number(-1000, 1000)) * 0.001f;
      if (positive) v = std::fabs(v) + 0.5f;
      if (type == dtype::f32)
        static_cast<float*>(whole.data)[i] = v;
      else
        static_cast<std::uint16_t*>(whole.data)[i] = static_cast<std::uint16_t>(numeric::float_bits(v) >> 16);
    }
    return make_tensor(static_cast<char*>(whole.data) + (count > 0 ? shift * size_of(type) : 0), type,
                       extents, strides);
  }
  tensor f32(std::vector<std::int64_t> e, bool positive = false) {
    return make(dtype::f32, std::move(e), positive);
  }
  tensor bf16(std::vector<std::int64_t> e) { return make(dtype::bf16, std::move(e)); }
};

float value(const bytes& b, std::size_t i, dtype type) {
  if (type == dtype::f32) {
    float v;
    std::memcpy(&v, &b[4 * i], 4);
    return v;
  }
  std::uint16_t v;
  std::memcpy(&v, &b[2 * i], 2);
  return numeric::bits_float(std::uint32_t{v} << 16);
}

/// Outputs of `exact` bit for bit, the others within `tolerance` of the tensor's largest value.
template <class P>
void compare(const P& p, double tolerance, const std::set<std::string>& exact = {}) {
  INFO(P::name);
  REQUIRE(check(p).text() == "");
  expect_as_reference(p, [&](const std::string& name, const bytes& expected, const bytes& got) {
    if (expected == got) return true;
    if (exact.count(name)) return false;
    dtype type = dtype::none;
    for (const field_info& f : get_operation(P::name).fields)
      if (f.name == name) type = f.tensor_in(&p).dtype;
    double largest = 0;
    const std::size_t n = expected.size() / static_cast<std::size_t>(size_of(type));
    for (std::size_t i = 0; i < n; ++i)
      largest = std::max(largest, std::fabs(double{value(expected, i, type)}));
    for (std::size_t i = 0; i < n; ++i) {
      const double e = value(expected, i, type), g = value(got, i, type);
      const double bound = tolerance * largest + (type == dtype::bf16 ? std::fabs(e) * 0x1p-7 : 0.0);
      if (!(std::fabs(e - g) <= bound)) {
        UNSCOPED_INFO(name << " value " << i << ": expected " << e << ", got " << g);
        return false;
      }
    }
    return true;
  });
}

/// Calls f(maker, tokens, mult, hidden) for a number of seeds.
template <class F>
void problems(unsigned seeds, F f) {
  for (unsigned seed = 1; seed <= trials(seeds); ++seed) {
    memory m;
    randomness r(seed);
    maker k{m, r, r.one_in(3)};
    const std::int64_t tokens = r.pick<std::int64_t>({0, 1, 2, 5, 9, 70});
    const std::int64_t mult = r.one_in(3) ? 4 : r.number(1, 8);
    const std::int64_t hidden = 8 * (r.one_in(4) ? r.number(1, 80) : r.number(1, 12));
    INFO("seed " << seed << " tokens " << tokens << " mult " << mult << " hidden " << hidden);
    f(k, tokens, mult, hidden);
    CHECK(m.guards_intact());
  }
}

}  // namespace

TEST_CASE("mhc: streams") {
  problems(12, [](maker& k, std::int64_t t, std::int64_t m, std::int64_t h) {
    const std::int64_t any = k.r.one_in(2) ? h : k.r.number(1, 50);
    memory& mem = k.m;
    mhc::expand e{.x = mem.make(dtype::bf16, {t, any}), .out = k.bf16({t, m, any})};
    k.r.fill(e.x);
    e.mhc_mult = m;
    compare(e, 0);
    mhc::expand_backward eb{.out_grad = mem.make(dtype::bf16, {t, m, any}), .x_grad = k.bf16({t, any})};
    k.r.fill(eb.out_grad);
    compare(eb, 0);
    const std::int64_t wide = k.r.one_in(4) ? m + 7 : m;
    compare(mhc::pre_apply_mix{.x = k.bf16({t, wide, h}), .mix = k.f32({t, wide}), .out = k.bf16({t, h})}, 0);
    mhc::pre_apply_mix_backward ab{.x = k.bf16({t, wide, h}),
                                   .mix = k.f32({t, wide}),
                                   .out_grad = k.bf16({t, h}),
                                   .x_grad = k.r.one_in(4) ? tensor{} : k.bf16({t, wide, h}),
                                   .mix_grad = k.f32({t, wide})};
    ab.accumulate = k.r.one_in(2);
    compare(ab, 1e-5, {"x_grad"});
    compare(mhc::post{.x = k.bf16({t, h}),
                      .residual = k.bf16({t, wide, h}),
                      .post_mix = k.f32({t, wide}),
                      .comb_mix = k.f32({t, wide, wide}),
                      .out = k.bf16({t, wide, h})},
            0);
    compare(mhc::post_backward{.x = k.bf16({t, h}),
                               .residual = k.bf16({t, wide, h}),
                               .post_mix = k.f32({t, wide}),
                               .comb_mix = k.f32({t, wide, wide}),
                               .out_grad = k.bf16({t, wide, h}),
                               .x_grad = k.bf16({t, h}),
                               .residual_grad = k.r.one_in(4) ? tensor{} : k.bf16({t, wide, h}),
                               .post_mix_grad = k.f32({t, wide}),
                               .comb_mix_grad = k.f32({t, wide, wide})},
            1e-5, {"x_grad", "residual_grad"});
  });
}

TEST_CASE("mhc: mixes") {
  problems(12, [](maker& k, std::int64_t t, std::int64_t m, std::int64_t) {
    if (k.r.one_in(4)) t = 300;
    const std::int64_t wide = k.r.one_in(5) ? 17 : m, all = wide * (wide + 2);
    mhc::pre_split_mixes s{.x = k.f32({t, all}),
                           .scale = k.f32({3}),
                           .base = k.f32({all}),
                           .pre_mix = k.f32({t, wide}),
                           .post_mix = k.f32({t, wide}),
                           .comb_mix = k.f32({t, wide, wide})};
    s.post_mult_value = 2;
    compare(s, 0);
    mhc::pre_split_mixes_backward sb{.x = k.f32({t, all}),
                                     .scale = k.f32({3}),
                                     .base = k.f32({all}),
                                     .pre_mix_grad = k.f32({t, wide}),
                                     .post_mix_grad = k.f32({t, wide}),
                                     .comb_mix_grad = k.f32({t, wide, wide}),
                                     .x_grad = k.f32({t, all}),
                                     .scale_grad = k.f32({3}),
                                     .base_grad = k.f32({all})};
    sb.post_mult_value = 2;
    sb.accumulate = k.r.one_in(2);
    compare(sb, 1e-6, {"x_grad"});
    compare(
        mhc::head_compute_mix{
            .x = k.f32({t, wide}), .scale = k.f32({1}), .base = k.f32({wide}), .out = k.f32({t, wide})},
        0);
    mhc::head_compute_mix_backward hb{.x = k.f32({t, wide}),
                                      .scale = k.f32({1}),
                                      .base = k.f32({wide}),
                                      .out_grad = k.f32({t, wide}),
                                      .x_grad = k.f32({t, wide}),
                                      .scale_grad = k.f32({1}),
                                      .base_grad = k.f32({wide})};
    hb.accumulate = k.r.one_in(2);
    compare(hb, 1e-6, {"x_grad"});
    mhc::sinkhorn n{.x = k.f32({t, m, m}), .out = k.f32({t, m, m})};
    n.repeat = k.r.pick<std::int64_t>({1, 2, 10});
    compare(n, 0);
    mhc::sinkhorn_backward nb{
        .x = k.f32({t, m, m}), .out_grad = k.f32({t, m, m}), .x_grad = k.f32({t, m, m})};
    nb.repeat = k.r.pick<std::int64_t>({1, 2, 10});
    compare(nb, 1e-5);
  });
}

TEST_CASE("mhc: norm") {
  problems(12, [](maker& k, std::int64_t t, std::int64_t m, std::int64_t h) {
    const std::int64_t mixes = k.r.one_in(3) ? m : m * (m + 2), channels = m * h;
    mhc::fn_normw_merge f{
        .fn = k.f32({mixes, channels}), .norm_weight = k.f32({channels}), .out = k.f32({mixes, channels})};
    compare(f, 0);
    mhc::fn_normw_merge_backward fb{.fn = k.f32({mixes, channels}),
                                    .norm_weight = k.f32({channels}),
                                    .out_grad = k.f32({mixes, channels}),
                                    .fn_grad = k.r.one_in(4) ? tensor{} : k.f32({mixes, channels}),
                                    .norm_weight_grad = k.r.one_in(4) ? tensor{} : k.f32({channels})};
    fb.accumulate = k.r.one_in(2);
    compare(fb, 0);

    const std::int64_t splits = k.r.number(1, 20), groups = k.r.one_in(2) ? 1 : k.r.number(1, 4);
    mhc::reduce_partials_and_rmsnorm n{.out_mul_splitted = k.f32({splits, t, groups, mixes}),
                                       .sqrsum_splitted = k.f32({splits, t, groups}, true),
                                       .out_mul = k.r.one_in(3) ? tensor{} : k.f32({t, groups, mixes}),
                                       .sqrsum = k.r.one_in(3) ? tensor{} : k.f32({t, groups}),
                                       .out = k.f32({t, mixes})};
    n.rms_group_size = k.r.number(1, 100);
    compare(n, 0);
    mhc::reduce_partials_and_rmsnorm_backward nb{.out_grad = k.f32({t, mixes}),
                                                 .out_mul = k.f32({t, groups, mixes}),
                                                 .sqrsum = k.f32({t, groups}, true),
                                                 .out_mul_grad = k.f32({t, groups, mixes}),
                                                 .sqrsum_grad = k.f32({t, groups})};
    nb.rms_group_size = n.rms_group_size;
    compare(nb, 1e-6, {"out_mul_grad"});
  });
}

TEST_CASE("mhc: products with the mixing matrix") {
  problems(12, [](maker& k, std::int64_t t, std::int64_t m, std::int64_t h) {
    if (k.r.one_in(4)) t = 150;
    const std::int64_t all = m * (m + 2), channels = m * h;
    const std::int64_t splits = k.r.one_in(5) ? 90 : k.r.number(1, 20);
    const tensor weight = k.r.one_in(2) ? tensor{} : k.f32({channels});
    const auto maybe = [&](tensor t) { return k.r.one_in(3) ? tensor{} : t; };
    const bool head = k.r.one_in(3);
    const std::int64_t mixes = head ? m : all;
    mhc::pre_norm_fn n{.residual = k.bf16({t, m, h}),
                       .fn = k.f32({mixes, channels}),
                       .norm_weight = weight,
                       .out_mul = maybe(k.f32({t, mixes})),
                       .sqrsum = maybe(k.f32({t})),
                       .out = k.f32({t, mixes})};
    n.n_splits = splits;
    n.head = head;
    compare(n, 1e-5);
    mhc::pre_norm_fn_backward nb{.residual = k.bf16({t, m, h}),
                                 .fn = k.f32({mixes, channels}),
                                 .norm_weight = weight,
                                 .out_mul = k.f32({t, mixes}),
                                 .sqrsum = k.f32({t}, true),
                                 .out_grad = k.f32({t, mixes}),
                                 .residual_grad = k.bf16({t, m, h}),
                                 .fn_grad = k.f32({mixes, channels}),
                                 .norm_weight_grad = weight.defined() ? maybe(k.f32({channels})) : tensor{}};
    nb.head = head;
    nb.accumulate = k.r.one_in(2);
    nb.accumulate_residual = k.r.one_in(2);
    compare(nb, 1e-5);
    mhc::block_backward b{.residual = k.bf16({t, m, h}),
                          .fn = k.f32({mixes, channels}),
                          .norm_weight = weight,
                          .out_mul = k.f32({t, mixes}),
                          .sqrsum = k.f32({t}, true),
                          .mixes_grad = k.f32({t, mixes}),
                          .pre_mix = k.f32({t, m}),
                          .layer_input_grad = k.bf16({t, h}),
                          .comb_mix = head ? tensor{} : k.f32({t, m, m}),
                          .out_grad = head ? tensor{} : k.bf16({t, m, h}),
                          .residual_grad = k.bf16({t, m, h}),
                          .fn_grad = maybe(k.f32({mixes, channels})),
                          .norm_weight_grad = weight.defined() ? maybe(k.f32({channels})) : tensor{}};
    b.head = head;
    b.accumulate = k.r.one_in(2);
    compare(b, 1e-5);

    const std::int64_t groups = k.r.one_in(2) ? 1 : m * h / 8 % 2 == 0 ? 2 : m;
    const std::int64_t rows = k.r.one_in(3) ? k.r.number(1, 30) : mixes;
    mhc::pre_norm_fn_partials s{.residual = k.bf16({t, m, h}),
                                .fn = k.f32({rows, channels}),
                                .out_mul_splitted = k.f32({splits, t, groups, rows}),
                                .sqrsum_splitted = k.f32({splits, t, groups})};
    s.n_splits = splits;
    s.rms_group_size = channels / groups;
    compare(s, 1e-5);
  });
}

TEST_CASE("mhc: from the streams to a layer's input") {
  problems(12, [](maker& k, std::int64_t t, std::int64_t m, std::int64_t h) {
    const std::int64_t mixes = m * (m + 2), channels = m * h, splits = k.r.one_in(5) ? 90 : k.r.number(1, 20);
    const auto maybe = [&](tensor t) { return k.r.one_in(3) ? tensor{} : t; };
    mhc::pre p{.residual = k.bf16({t, m, h}),
               .fn = k.f32({mixes, channels}),
               .norm_weight = maybe(k.f32({channels})),
               .scale = k.f32({3}),
               .base = k.f32({mixes}),
               .post_mix = k.f32({t, m}),
               .comb_mix = k.f32({t, m, m}),
               .layer_input = k.bf16({t, h}),
               .out_mul = maybe(k.f32({t, mixes})),
               .sqrsum = maybe(k.f32({t})),
               .pre_mix = maybe(k.f32({t, m}))};
    p.n_splits = splits;
    compare(p, 2e-5);
    mhc::pre_big_fuse b{.residual = k.bf16({t, m, h}),
                        .fn = k.f32({mixes, channels}),
                        .scale = k.f32({3}),
                        .base = k.f32({mixes}),
                        .post_mix = k.f32({t, m}),
                        .comb_mix = k.f32({t, m, m}),
                        .layer_input = k.bf16({t, h})};
    b.fn_splits = splits;
    const bool partials = k.r.one_in(2);
    if (partials) {
      b.out_mul_splitted = k.f32({splits, t, mixes});
      b.sqrsum_splitted = k.f32({splits, t}, true);
    }
    // From the partial sums on every step has the reference's order.
    compare(b, partials ? 0 : 2e-5);
  });
}

TEST_CASE("mhc: several layers") {
  problems(8, [](maker& k, std::int64_t t, std::int64_t m, std::int64_t h) {
    queue on_host{cpu_selector}, on_gpu{gpu()};
    const std::int64_t layers = k.r.one_in(4) ? 27 : k.r.number(1, 3), posts = layers - k.r.number(0, 1);
    std::vector<tensor> lists[6];
    for (std::int64_t l = 0; l < layers; ++l) {
      lists[0].push_back(k.f32({t, m}));
      lists[4].push_back(k.bf16({t, h}));
      if (l >= posts) continue;
      lists[1].push_back(k.bf16({t, h}));
      lists[2].push_back(k.f32({t, m}));
      lists[3].push_back(k.f32({t, m, m}));
      lists[5].push_back(k.bf16({t, m, h}));
    }
    tensor initial = k.bf16({t, m, h});
    // Copies on the device; the lists there.
    std::vector<void*> owned;
    const auto copy = [&](const tensor& from) {
      const std::size_t size = static_cast<std::size_t>(from.span() * size_of(from.dtype));
      auto* base = static_cast<unsigned char*>(malloc_device(size + 256, on_gpu));
      owned.push_back(base);
      tensor to = from;
      to.data = base + reinterpret_cast<std::uintptr_t>(from.data) % 256;
      to.device = on_gpu.get_device();
      if (size > 0) memcpy(on_gpu, to.data, from.data, size);
      return to;
    };
    const auto problem = [](const tensor& first, const std::vector<tensor>(&l)[6]) {
      const auto list = [](const std::vector<tensor>& v) {
        return tensor_list{v.data(), static_cast<std::int64_t>(v.size())};
      };
      return mhc::multilayer_recompute{first,      list(l[0]), list(l[1]), list(l[2]),
                                       list(l[3]), list(l[4]), list(l[5])};
    };
    std::vector<tensor> there[6];
    for (int n = 0; n < 6; ++n)
      for (const tensor& x : lists[n]) there[n].push_back(copy(x));
    const tensor initial_there = copy(initial);
    on_gpu.wait();
    run(on_host, problem(initial, lists));
    run(on_gpu, problem(initial_there, there));
    on_gpu.wait();
    for (int n = 4; n < 6; ++n)
      for (std::size_t l = 0; l < lists[n].size(); ++l) {
        bytes got(static_cast<std::size_t>(lists[n][l].span() * 2));
        if (!got.empty()) memcpy(on_gpu, got.data(), there[n][l].data, got.size());
        on_gpu.wait();
        CHECK(got == host_bytes(lists[n][l]));
      }
    for (void* base : owned) free(base, on_gpu);
  });
}

// Enough tokens for two in a thread, and for sums of whole rows.
TEST_CASE("mhc: many tokens") {
  for (std::int64_t m : {1, 4}) {
    memory mem;
    randomness r(7);
    maker k{mem, r, true};
    const std::int64_t t = 2100, h = m == 1 ? 136 : 40, channels = m * h;
    const tensor residual = k.bf16({t, m, h}), fn = k.f32({m * (m + 2), channels});
    mhc::pre_norm_fn n{.residual = residual,
                       .fn = fn,
                       .out_mul = k.f32({t, m * (m + 2)}),
                       .sqrsum = k.f32({t}),
                       .out = k.f32({t, m * (m + 2)})};
    n.n_splits = 3;
    compare(n, 1e-5);
    mhc::pre_norm_fn_partials s{.residual = residual,
                                .fn = fn,
                                .out_mul_splitted = k.f32({3, t, 1, m * (m + 2)}),
                                .sqrsum_splitted = k.f32({3, t, 1})};
    s.n_splits = 3;
    s.rms_group_size = channels;
    compare(s, 1e-5);
  }
}

// Splits of several segments, and the same bits from the partial sums as from the whole.
TEST_CASE("mhc: long splits") {
  queue on_gpu{gpu()};
  for (std::int64_t splits : {1, 3, 66}) {
    memory mem;
    randomness r(11);
    maker k{mem, r, splits != 3};
    const std::int64_t t = 37, m = splits == 1 ? 2 : 4, h = splits == 1 ? 2000 : 1008, channels = m * h;
    const std::int64_t mixes = m * (m + 2);
    mhc::pre_norm_fn n{.residual = k.bf16({t, m, h}),
                       .fn = k.f32({mixes, channels}),
                       .norm_weight = splits == 3 ? tensor{} : k.f32({channels}),
                       .out_mul = k.f32({t, mixes}),
                       .sqrsum = k.f32({t}),
                       .out = k.f32({t, mixes})};
    n.n_splits = splits;
    compare(n, 1e-5);
    if (n.norm_weight) continue;
    mhc::pre_norm_fn_partials s{.residual = n.residual,
                                .fn = n.fn,
                                .out_mul_splitted = k.f32({splits, t, 1, mixes}),
                                .sqrsum_splitted = k.f32({splits, t, 1})};
    s.n_splits = splits;
    s.rms_group_size = channels;
    device_copy<mhc::pre_norm_fn> whole(on_gpu, n);
    device_copy<mhc::pre_norm_fn_partials> parts(on_gpu, s);
    run(on_gpu, whole.problem());
    run(on_gpu, parts.problem());
    on_gpu.wait();
    for (const auto& [name, host] : {std::pair{"out_mul_splitted", s.out_mul_splitted},
                                     std::pair{"sqrsum_splitted", s.sqrsum_splitted}}) {
      const bytes sums = parts.download(name);
      std::memcpy(host.data, sums.data(), sums.size());
    }
    mhc::reduce_partials_and_rmsnorm last{.out_mul_splitted = s.out_mul_splitted,
                                          .sqrsum_splitted = s.sqrsum_splitted};
    last.rms_group_size = channels;
    last.norm_eps = n.norm_eps;
    last.out = mem.make(dtype::f32, {t, mixes});
    compare(last, 0);
    const bytes got = whole.download("out");
    for (std::int64_t i = 0; i < t; ++i)
      for (std::int64_t j = 0; j < mixes; ++j)
        CHECK(value(got, static_cast<std::size_t>(i * n.out.stride(0) + j), dtype::f32) ==
              static_cast<const float*>(last.out.data)[i * mixes + j]);
  }
}

TEST_CASE("mhc: from the streams to a layer's input in one pass") {
  // Four streams of a multiple of 128 channels: in clusters where the device has them and the tensors are
  // aligned. How many tiles of tokens a cluster takes, and whether all of a slice fits, makes no difference.
  struct sizes {
    std::int64_t tokens, hidden;
    bool plain;
  };
  for (const sizes& s : {sizes{1, 128, true}, sizes{16, 256, true}, sizes{130, 384, true},
                         sizes{1, 7168, true}, sizes{20, 1152, false}}) {
    memory mem;
    randomness r(static_cast<unsigned>(s.tokens));
    maker k{mem, r, s.plain};
    const std::int64_t t = s.tokens, m = 4, h = s.hidden;
    INFO("tokens " << t << " hidden " << h);
    mhc::pre_big_fuse b{.residual = k.bf16({t, m, h}),
                        .fn = k.f32({24, m * h}),
                        .scale = k.f32({3}),
                        .base = k.f32({24}),
                        .post_mix = k.f32({t, m}),
                        .comb_mix = k.f32({t, m, m}),
                        .layer_input = k.bf16({t, h})};
    compare(b, 2e-5);
  }
}
