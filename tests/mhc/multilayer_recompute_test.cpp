#include <cmath>

#include <portile/portile.hpp>

#include "mhc/model.hpp"
#include "support/layouts.hpp"
#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;

using mhc::multilayer_recompute;

namespace {

struct layers {
  std::vector<tensor> pre_mix, layer_output, post_mix, comb_mix, layer_input, residual;
};

multilayer_recompute make(memory& m, layers& l, int num_layers, int num_post, std::int64_t mult = 3) {
  multilayer_recompute p;
  const std::int64_t hidden = 16;
  p.initial_residual = fill(m.make(dtype::bf16, {5, mult, hidden}), 1);
  for (unsigned i = 0; i < static_cast<unsigned>(num_layers); ++i) {
    l.pre_mix.push_back(fill(m.make(dtype::f32, {5, mult}), 10 + i));
    l.layer_input.push_back(m.make(dtype::bf16, {5, hidden}));
  }
  for (unsigned i = 0; i < static_cast<unsigned>(num_post); ++i) {
    l.layer_output.push_back(fill(m.make(dtype::bf16, {5, hidden}), 20 + i));
    l.post_mix.push_back(fill(m.make(dtype::f32, {5, mult}), 30 + i));
    l.comb_mix.push_back(fill(m.make(dtype::f32, {5, mult, mult}), 40 + i, 0.5f));
    l.residual.push_back(m.make(dtype::bf16, {5, mult, hidden}));
  }
  const auto list = [](const std::vector<tensor>& v) {
    return tensor_list{v.data(), static_cast<std::int64_t>(v.size())};
  };
  p.pre_mix = list(l.pre_mix);
  p.layer_output = list(l.layer_output);
  p.post_mix = list(l.post_mix);
  p.comb_mix = list(l.comb_mix);
  p.layer_input = list(l.layer_input);
  p.residual = list(l.residual);
  return p;
}

}  // namespace

TEST_CASE("mhc.multilayer_recompute refuses bad problems") {
  layers l;
  expect_refusals<multilayer_recompute>(
      [&](memory& m) {
        l = {};
        return make(m, l, 3, 2);
      },
      {
          {"residual absent", [](auto& p) { p.initial_residual = {}; },
           "initial_residual = absent: is required"},
          {"no layers", [](auto& p) { p.pre_mix.size = 0; }, "pre_mix.size = 0: must be at least 1", 1},
          {"more than 64", [](auto& p) { p.pre_mix.size = 65; }, "pre_mix.size = 65: must be 0 to 64", 3},
          {"layer inputs", [](auto& p) { p.layer_input.size = 2; },
           "layer_input.size = 2: must be that of pre_mix, 3", 1},
          {"too few outputs",
           [](auto& p) { p.layer_output.size = p.post_mix.size = p.comb_mix.size = p.residual.size = 1; },
           "layer_output.size = 1: must be that of pre_mix or one less, 3 or 2", 1},
          {"too many outputs",
           [&](auto& p) {
             l.layer_output.resize(4, l.layer_output[0]);
             p.layer_output = {l.layer_output.data(), 4};
           },
           "layer_output.size = 4: must be that of pre_mix or one less, 3 or 2", 1},
          {"post mixes", [](auto& p) { p.post_mix.size = 1; },
           "post_mix.size = 1: must be that of layer_output, 2", 1},
          {"comb mixes", [](auto& p) { p.comb_mix.size = 1; },
           "comb_mix.size = 1: must be that of layer_output, 2", 1},
          {"residuals", [](auto& p) { p.residual.size = 1; },
           "residual.size = 1: must be that of layer_output, 2", 1},
          {"dtype of one", [&](auto&) { l.pre_mix[1].dtype = dtype::bf16; },
           "pre_mix[1].dtype = bf16: must be f32"},
          {"shape of one", [&](auto&) { l.comb_mix[1].extents[2] = 2; },
           "comb_mix[1].extents[2] = 2: must be mhc_mult = 3"},
          {"in place", [&](auto&) { l.residual[1] = l.residual[0]; }, "residual[1].data"},
          {"over the first streams", [&](auto& p) { l.residual[0] = p.initial_residual; },
           "residual[0].data"},
          {"hidden_size",
           [&](auto& p) {
             p.initial_residual.extents[2] = 12;
             for (auto* v : {&l.layer_output, &l.layer_input})
               for (tensor& t : *v) t.extents[1] = 12;
             for (tensor& t : l.residual) t.extents[2] = 12;
           },
           "hidden_size = 12: must be a positive multiple of 8", 2},
      });
}

TEST_CASE("mhc.multilayer_recompute has the bits of its operations, one after the other") {
  queue q{cpu_selector};
  for (const auto& [num_layers, num_post] : {std::pair{1, 0}, {1, 1}, {3, 2}, {3, 3}, {10, 9}, {64, 64}})
    for (const std::int64_t mult : {1, 3, 4, 8}) {
      memory m;
      layers l;
      multilayer_recompute p = make(m, l, num_layers, num_post, mult);
      run(q, p);
      tensor streams = p.initial_residual;
      for (int i = 0; i < num_layers; ++i) {
        const auto n = static_cast<std::size_t>(i);
        mhc::pre_apply_mix apply;
        apply.x = streams;
        apply.mix = l.pre_mix[n];
        apply.out = m.make(dtype::bf16, {5, 16});
        run(q, apply);
        REQUIRE(first_difference(apply.out, l.layer_input[n]) == -1);
        if (i >= num_post) break;
        mhc::post post;
        post.x = l.layer_output[n];
        post.residual = streams;
        post.post_mix = l.post_mix[n];
        post.comb_mix = l.comb_mix[n];
        post.out = m.make(dtype::bf16, {5, mult, 16});
        run(q, post);
        REQUIRE(first_difference(post.out, l.residual[n]) == -1);
        streams = post.out;
      }
      if (num_layers == 3) expect_layout_freedom(p);
      CHECK(m.guards_intact());
    }
}

TEST_CASE("mhc.multilayer_recompute of no tokens") {
  memory m;
  layers l;
  multilayer_recompute p = make(m, l, 2, 2);
  p.initial_residual.extents[0] = 0;
  for (auto* v : {&l.pre_mix, &l.layer_output, &l.post_mix, &l.comb_mix, &l.layer_input, &l.residual})
    for (tensor& t : *v) t.extents[0] = 0;
  queue q{cpu_selector};
  CHECK_NOTHROW(run(q, p));
}
