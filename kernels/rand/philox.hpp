#pragma once
#include <portile/core/problem.hpp>

namespace portile::rand {

/// Four random words per row: out[i] = Philox4x32-10(counter[i], key[i]) of Salmon et al. (SC11).
struct philox {
  static constexpr const char* name = "rand.philox";

  tensor counter{};
  tensor key{};
  tensor out{};

  static void describe(description<philox>& d) {
    using enum dtype;
    d.summary("Philox4x32-10, the block function of the random streams");
    d.tolerance("bits");
    d.in("counter", &philox::counter, "num_rows, 4", u32, "counters, low word first");
    d.in("key", &philox::key, "num_rows, 2", u32, "keys, low word first");
    d.out("out", &philox::out, "num_rows, 4", u32, "random words");
    d.ignored({"api"});
  }
  void check(checker&) const {}
  void infer(inference& i) const;
};

}  // namespace portile::rand
