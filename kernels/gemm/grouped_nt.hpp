#pragma once
#include <portile/core/problem.hpp>
#include <portile/kernels/gemm/operands.hpp>

namespace portile::gemm {

/// gemm.nt with one b per expert, out(row) = a(row) * b[e]^T for the rows of expert e, in one of two forms:
///   contiguous  a[M, K]: expert e has the rows expert_start[e] to expert_end[e] - 1, of which the first
///               num_live_per_expert[e] count where that is given. Segments have any size, empty ones too, in
///               any order.
///   masked      a[E, M_max, K]: expert e has the rows 0 to masked_m[e] - 1 of a[e].
/// Rows that no expert has are neither read (their scales too) nor written. Values, scales, order of
/// rounding, K = 0 and `accumulate` as in gemm.nt.
struct grouped_nt {
  static constexpr const char* name = "gemm.grouped_nt";

  tensor a{};
  tensor b{};
  tensor a_sf{};
  tensor b_sf{};
  tensor expert_start{};
  tensor expert_end{};
  tensor num_live_per_expert{};
  tensor masked_m{};
  tensor out{};
  bool accumulate = false;
  word tf32_rounding = "nearest";

  static void describe(description<grouped_nt>& d) {
    using enum dtype;
    d.summary("matrix product a * b[expert of the row]^T");
    d.tolerance("as gemm.nt");
    d.in("a", &grouped_nt::a, "M, K | E, M_max, K", {bf16, f32, e4m3},
         "rows of all experts, or M_max rows for each expert");
    d.in("b", &grouped_nt::b, "E, N, K", {bf16, f32, e4m3, e2m1x2}, "right factors, transposed");
    d.in("a_sf", &grouped_nt::a_sf, "M, ceil(K, 128) | E, M_max, ceil(K, 128)", {f32, ue8m0x4},
         "scales of an e4m3 a")
        .optional()
        .any_strides();
    d.in("b_sf", &grouped_nt::b_sf, (std::string("E, ") + b_sf_shape).c_str(), {f32, ue8m0x4},
         "scales of an e4m3 or e2m1x2 b")
        .optional()
        .any_strides();
    d.in("expert_start", &grouped_nt::expert_start, "E", {i32}, "first row of each expert; contiguous form")
        .optional();
    d.in("expert_end", &grouped_nt::expert_end, "E", {i32}, "one more than the last row of each expert")
        .optional();
    d.in("num_live_per_expert", &grouped_nt::num_live_per_expert, "E", {i32},
         "how many rows of a segment count; absent: all")
        .optional();
    d.in("masked_m", &grouped_nt::masked_m, "E", {i32}, "how many rows of a[e] count; masked form")
        .optional();
    d.out("out", &grouped_nt::out, "M, N | E, M_max, N", {f32, bf16}, "result");
    d.attribute("accumulate", &grouped_nt::accumulate, "add to out instead of overwriting it");
    d.attribute("tf32_rounding", &grouped_nt::tf32_rounding, "how f32 factors become tf32")
        .one_of({"nearest", "truncate"});
    d.kept("a and b are both bf16, both f32, both e4m3, or a e4m3 and b e2m1x2; K is even with e2m1x2");
    d.kept(
        "scales are given exactly with quantised factors: per 1 x 128 of a, per 128 x 128 of an e4m3 b, per "
        "1 x 32 of an e2m1x2 b");
    d.kept(
        "expert_start and expert_end with a[M, K], masked_m with a[E, M_max, K]; out and a_sf have the rank "
        "of a");
    d.lifted("segments start at multiples of a tile's rows");
    d.lifted("row pitches and addresses are multiples of 16 bytes; N and K are multiples of a tile");
    describe_segment_traps(d);
    d.trap("masked_m must be 0 to M_max (index: expert; the nearest legal count is used)");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::gemm
