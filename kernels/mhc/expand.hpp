#pragma once
#include <portile/core/problem.hpp>

namespace portile::mhc {

/// Starts the residual streams: out[t, i] = x[t] for every stream i, bit by bit.
struct expand {
  static constexpr const char* name = "mhc.expand";

  tensor x{};
  tensor out{};
  std::int64_t mhc_mult = 4;

  static void describe(description<expand>& d) {
    using enum dtype;
    d.summary("copy the embedding into each residual stream");
    d.tolerance("bits");
    d.in("x", &expand::x, "num_tokens, hidden_size", {bf16}, "embedding").contiguous();
    d.out("out", &expand::out, "num_tokens, mhc_mult, hidden_size", {bf16}, "residual streams");
    d.attribute("mhc_mult", &expand::mhc_mult, "number of streams, at least 1");
    d.kept("x is contiguous");
  }
  void check(checker& c) const;
  void infer(inference& i) const;
};

}  // namespace portile::mhc
