#pragma once
#include <portile/core/problem.hpp>
#include <portile/kernels/gemm/operands.hpp>

namespace portile::gemm {

/// The weight gradient of a grouped product: out[e] = a_e^T * b_e, plus the old out[e] with `accumulate`:
///   out(e, m, n) = round(sum over the rows r of expert e of a(r, m) * b(r, n) [+ out(e, m, n)]), rounded
///   once to f32
/// Expert e has the rows expert_start[e] to expert_end[e] - 1, of which the first num_live_per_expert[e]
/// count where that is given. Other rows are not read. An expert without rows: zeros, or out as it is with
/// `accumulate`. Without `accumulate` out is never read. Values of f32 factors are rounded to tf32 as in
/// gemm.nt; accumulation in fp32 or better.
struct grouped_tn {
  static constexpr const char* name = "gemm.grouped_tn";

  tensor a{};
  tensor b{};
  tensor expert_start{};
  tensor expert_end{};
  tensor num_live_per_expert{};
  tensor out{};
  bool accumulate = false;
  word tf32_rounding = "nearest";

  static void describe(description<grouped_tn>& d) {
    using enum dtype;
    d.summary("per expert a^T * b over its rows: the weight gradient of a grouped product");
    d.tolerance(
        "fp32 sum: (rows + 4) * 2^-24 * sum |a||b|, then the rounding of out; rows * 2^-10 * sum |a||b| for "
        "truncated tf32");
    d.in("a", &grouped_tn::a, "R, M", {bf16, f32}, "rows of all experts");
    d.in("b", &grouped_tn::b, "R, N", {bf16, f32}, "rows of all experts; type of a");
    d.in("expert_start", &grouped_tn::expert_start, "E", {i32}, "first row of each expert");
    d.in("expert_end", &grouped_tn::expert_end, "E", {i32}, "one more than the last row of each expert");
    d.in("num_live_per_expert", &grouped_tn::num_live_per_expert, "E", {i32},
         "how many rows of a segment count; absent: all")
        .optional();
    d.out("out", &grouped_tn::out, "E, M, N", {f32}, "result");
    d.attribute("accumulate", &grouped_tn::accumulate, "add to out instead of overwriting it");
    d.attribute("tf32_rounding", &grouped_tn::tf32_rounding, "how f32 factors become tf32")
        .one_of({"nearest", "truncate"});
    d.kept("a and b have one type");
    d.lifted("segments start at multiples of a tile's rows");
    d.lifted("row pitches and addresses are multiples of 16 bytes; M and N are multiples of a tile");
    describe_segment_traps(d);
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::gemm
