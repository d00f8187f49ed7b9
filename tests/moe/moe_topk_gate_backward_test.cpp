#include <cmath>

#include <portile/portile.hpp>

#include "support/refusal.hpp"

using namespace portile;
using namespace portile::test;
using moe::moe_topk_gate_backward;

namespace {

moe_topk_gate_backward make(memory& m, std::int64_t tokens, std::int64_t experts, std::int64_t k,
                            std::int64_t seqs) {
  moe_topk_gate_backward p;
  p.scores = m.make(dtype::f32, {tokens, experts});
  p.topk_idx = m.make(dtype::i64, {tokens, k});
  p.topk_weights = m.make(dtype::f32, {tokens, k});
  p.topk_weights_grad = m.make(dtype::f32, {tokens, k});
  p.logits_grad = m.make(dtype::f32, {tokens, experts});
  p.routed_scaling_factor = 1.5;
  fill_normal(p.scores, 11);
  for (std::int64_t i = 0; i < p.scores.numel(); ++i) {
    auto& u = static_cast<float*>(p.scores.data)[i];
    u = static_cast<float>(std::sqrt(std::log1p(std::exp(2.0 * static_cast<double>(u)))));
  }
  fill_normal(p.topk_weights_grad, 12);
  for (std::int64_t t = 0; t < tokens; ++t) {
    double sum = 1e-20;
    for (std::int64_t j = 0; j < k; ++j) {
      at<std::int64_t>(p.topk_idx, t, j) = (3 * t + 5 * j) % experts;
      sum += static_cast<double>(at<float>(p.scores, t, (3 * t + 5 * j) % experts));
    }
    for (std::int64_t j = 0; j < k; ++j)
      at<float>(p.topk_weights, t, j) = static_cast<float>(
          1.5 * static_cast<double>(at<float>(p.scores, t, at<std::int64_t>(p.topk_idx, t, j))) / sum);
  }
  if (seqs > 0) {
    p.mask = m.of<std::uint8_t>({tokens}, std::vector<int>(static_cast<std::size_t>(tokens), 1));
    p.mask.dtype = dtype::boolean;
    p.scores_sum_grad = m.make(dtype::f32, {seqs, experts});
    fill_normal(p.scores_sum_grad, 13);
  }
  return p;
}

double score(double x) { return std::sqrt(std::log1p(std::exp(x))); }

/// What the gate of token t contributes to the loss, as a function of its logits.
double loss(const moe_topk_gate_backward& p, std::int64_t t, const std::vector<double>& x) {
  double sum = 1e-20, value = 0, total = 0;
  const std::int64_t k = p.topk_idx.extent(1);
  for (std::int64_t j = 0; j < k; ++j)
    if (const auto e = at<std::int64_t>(p.topk_idx, t, j); e >= 0)
      sum += score(x[static_cast<std::size_t>(e)]);
  for (std::int64_t j = 0; j < k; ++j)
    if (const auto e = at<std::int64_t>(p.topk_idx, t, j); e >= 0)
      value += static_cast<double>(at<float>(p.topk_weights_grad, t, j)) * 1.5 *
               score(x[static_cast<std::size_t>(e)]) / sum;
  if (!p.mask.defined() || !at<std::uint8_t>(p.mask, t)) return value;
  const std::int64_t q = t / (p.scores.extent(0) / p.scores_sum_grad.extent(0));
  for (double v : x) total += score(v);
  for (std::size_t e = 0; e < x.size(); ++e)
    value += static_cast<double>(at<float>(p.scores_sum_grad, q, static_cast<std::int64_t>(e))) *
             score(x[e]) / total;
  return value;
}

}  // namespace

TEST_CASE("moe.moe_topk_gate_backward refuses bad problems") {
  expect_refusals<moe_topk_gate_backward>(
      [](memory& m) { return make(m, 6, 40, 3, 2); },
      {
          {"scores absent", [](auto& p) { p.scores = {}; }, "scores = absent: is required"},
          {"scoring", [](auto& p) { p.scoring_func = "softmax"; },
           "scoring_func = 'softmax': must be sqrtsoftplus", 2},
          {"scores contiguous", [](auto& p) { p.scores.strides[0] = 41; }, "must be contiguous", 4},
          {"ids contiguous", [](auto& p) { p.topk_idx.strides[0] = 4; }, "must be contiguous", 4},
          {"weights contiguous", [](auto& p) { p.topk_weights.strides[0] = 4; }, "must be contiguous", 4},
          {"gradient contiguous", [](auto& p) { p.topk_weights_grad.strides[0] = 4; }, "must be contiguous",
           4},
          {"mask contiguous", [](auto& p) { p.mask.strides[0] = 2; }, "must be contiguous", 4},
          {"sum gradient contiguous", [](auto& p) { p.scores_sum_grad.strides[0] = 41; },
           "must be contiguous", 4},
          {"out contiguous", [](auto& p) { p.logits_grad.strides[0] = 41; }, "must be contiguous", 4},
          {"ids dtype", [](auto& p) { p.topk_idx.dtype = dtype::f64; }, "topk_idx.dtype = f64: must be i64"},
          {"rank", [](auto& p) { p.topk_weights.rank = 1; }, "topk_weights.rank = 1"},
          {"sizes", [](auto& p) { p.topk_weights_grad.extents[0] = 5; },
           "topk_weights_grad.extents[0] = 5: must be num_tokens = 6"},
          {"slots above experts",
           [](auto& p) {
             for (tensor* t : {&p.scores, &p.logits_grad, &p.scores_sum_grad})
               t->extents[1] = t->strides[0] = 2;
           },
           "num_topk = 3: must be at most num_experts = 2", 1},
          {"slots above 32",
           [](auto& p) {
             for (tensor* t : {&p.topk_idx, &p.topk_weights, &p.topk_weights_grad})
               t->extents[1] = t->strides[0] = 33;
           },
           "num_topk = 33: must be at most 32", 1},
          {"mask alone", [](auto& p) { p.scores_sum_grad = {}; },
           "scores_sum_grad = absent: must be given together with mask", 3},
          {"sum gradient alone", [](auto& p) { p.mask = {}; },
           "mask = absent: must be given together with scores_sum_grad", 3},
          {"sequences divide", [](auto& p) { p.scores_sum_grad.extents[0] = 4; },
           "num_seqs = 4: must be at least 1 and divide num_tokens = 6", 3},
          {"no sequence", [](auto& p) { p.scores_sum_grad.extents[0] = 0; },
           "num_seqs = 0: must be at least 1", 3},
      });
}

TEST_CASE("moe.moe_topk_gate_backward agrees with differences of the forward") {
  memory m;
  queue q{cpu_selector};
  for (std::int64_t seqs : {0, 1, 3}) {
    moe_topk_gate_backward p = make(m, 6, 10, 3, seqs);
    at<std::int64_t>(p.topk_idx, 2, 1) = at<std::int64_t>(p.topk_idx, 2, 0);  // an expert twice
    at<std::int64_t>(p.topk_idx, 3, 0) = -1;
    for (std::int64_t t : {2, 3}) {  // their weights follow from the changed ids
      double sum = 1e-20;
      for (std::int64_t j = 0; j < 3; ++j)
        if (const auto e = at<std::int64_t>(p.topk_idx, t, j); e >= 0)
          sum += static_cast<double>(at<float>(p.scores, t, e));
      for (std::int64_t j = 0; j < 3; ++j)
        if (const auto e = at<std::int64_t>(p.topk_idx, t, j); e >= 0)
          at<float>(p.topk_weights, t, j) =
              static_cast<float>(1.5 * static_cast<double>(at<float>(p.scores, t, e)) / sum);
    }
    if (seqs > 0) at<std::uint8_t>(p.mask, 4) = 0;
    run(q, p);
    for (std::int64_t t = 0; t < 6; ++t) {
      std::vector<double> x;
      for (std::int64_t e = 0; e < 10; ++e) {
        const double u = static_cast<double>(at<float>(p.scores, t, e));
        x.push_back(std::log(std::expm1(u * u)));
      }
      for (std::size_t e = 0; e < 10; ++e) {
        std::vector<double> up = x, down = x;
        up[e] += 1e-5;
        down[e] -= 1e-5;
        const double slope = (loss(p, t, up) - loss(p, t, down)) / 2e-5;
        CHECK(std::abs(static_cast<double>(at<float>(p.logits_grad, t, static_cast<std::int64_t>(e))) -
                       slope) < 2e-6);
      }
    }
  }
  CHECK(m.guards_intact());
}

TEST_CASE("moe.moe_topk_gate_backward: padded rows are +0, bits repeat, no tokens") {
  memory m;
  queue q{cpu_selector};
  moe_topk_gate_backward p = make(m, 4, 8, 2, 2);
  for (std::int64_t e = 0; e < 8; ++e) at<float>(p.scores, 3, e) = 0;
  at<std::int64_t>(p.topk_idx, 3, 0) = at<std::int64_t>(p.topk_idx, 3, 1) = -1;
  run(q, p);
  for (std::int64_t e = 0; e < 8; ++e)
    CHECK(at<std::uint32_t>(p.logits_grad, 3, e) == 0);  // its scores sum to 0
  at<std::uint8_t>(p.mask, 3) = 0;
  run(q, p);
  for (std::int64_t e = 0; e < 8; ++e) CHECK(at<std::uint32_t>(p.logits_grad, 3, e) == 0);
  moe_topk_gate_backward again = p;
  again.logits_grad = m.make(dtype::f32, {4, 8});
  run(q, again);
  CHECK(std::memcmp(p.logits_grad.data, again.logits_grad.data, 4 * 8 * 4) == 0);
  moe_topk_gate_backward none = make(m, 0, 8, 2, 1);
  CHECK_NOTHROW(run(q, none));
}

TEST_CASE("moe.moe_topk_gate_backward traps on ids out of range, which count as none") {
  memory m;
  moe_topk_gate_backward p = make(m, 3, 8, 2, 0), none = p;
  none.topk_idx = m.make(dtype::i64, {3, 2});
  none.logits_grad = m.make(dtype::f32, {3, 8});
  std::memcpy(none.topk_idx.data, p.topk_idx.data, 48);
  at<std::int64_t>(p.topk_idx, 1, 1) = 8;
  at<std::int64_t>(none.topk_idx, 1, 1) = -1;
  expect_trap(p, "topk_idx must be below num_experts", 3);
  queue q{cpu_selector};
  run(q, none);
  CHECK(std::memcmp(p.logits_grad.data, none.logits_grad.data, 3 * 8 * 4) == 0);
  CHECK(m.guards_intact());
}
