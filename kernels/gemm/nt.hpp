#pragma once
#include <portile/core/problem.hpp>
#include <portile/kernels/gemm/operands.hpp>

namespace portile::gemm {

/// out[M, N] = a[M, K] * b[N, K]^T, plus the old out with `accumulate`:
///   out(m, n) = round(sum over k of A(m, k) * B(n, k) [+ out(m, n)]), rounded once to the type of out
/// A and B are the exact values of bf16 factors; f32 factors rounded to tf32 (`tf32_rounding`: to nearest,
/// ties away from zero, or truncated); codes times scales for e4m3 and e2m1x2: a_sf(m, k / 128), and b_sf(n /
/// 128, k / 128) with an e4m3 b or b_sf(n, k / 32) with an e2m1x2 b. Scales are f32 or packed UE8M0 (four
/// along K to a word, unused bytes ignored), any strides. Accumulation is in fp32 or better, over quantised
/// factors with a promotion to fp32 at least every 128 channels. NaN and infinities follow IEEE arithmetic. K
/// = 0: zeros, or out as it is with `accumulate`. Without `accumulate` out is never read.
struct nt {
  static constexpr const char* name = "gemm.nt";

  tensor a{};
  tensor b{};
  tensor a_sf{};
  tensor b_sf{};
  tensor out{};
  bool accumulate = false;
  word tf32_rounding = "nearest";

  static void describe(description<nt>& d) {
    using enum dtype;
    d.summary("matrix product a * b^T");
    d.tolerance(
        "fp32 sum: (K + 4) * 2^-24 * sum |a||b|; 2^-11 * sum |a||b| for quantised factors; K * 2^-10 * sum "
        "|a||b| for truncated tf32; then the rounding of out");
    d.in("a", &nt::a, "M, K", {bf16, f32, e4m3}, "left factor");
    d.in("b", &nt::b, "N, K", {bf16, f32, e4m3, e2m1x2}, "right factor, transposed");
    d.in("a_sf", &nt::a_sf, "M, ceil(K, 128)", {f32, ue8m0x4}, "scales of an e4m3 a")
        .optional()
        .any_strides();
    d.in("b_sf", &nt::b_sf, b_sf_shape, {f32, ue8m0x4}, "scales of an e4m3 or e2m1x2 b")
        .optional()
        .any_strides();
    d.out("out", &nt::out, "M, N", {f32, bf16}, "result");
    d.attribute("accumulate", &nt::accumulate, "add to out instead of overwriting it");
    d.attribute("tf32_rounding", &nt::tf32_rounding, "how f32 factors become tf32")
        .one_of({"nearest", "truncate"});
    d.kept("a and b are both bf16, both f32, both e4m3, or a e4m3 and b e2m1x2; K is even with e2m1x2");
    d.kept(
        "scales are given exactly with quantised factors: per 1 x 128 of a, per 128 x 128 of an e4m3 b, per "
        "1 x 32 of an e2m1x2 b");
    d.lifted("row pitches and addresses are multiples of 16 bytes; M, N and K are multiples of a tile");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::gemm
