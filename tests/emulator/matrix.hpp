#pragma once
// A matrix instruction on the host: all lanes of a wave give their factors, and each computes its results
// from the lane maps of the atom (backends/hip/mfma/atom.hpp).
#include <cmath>

#include "backends/hip/mfma/atom.hpp"
#include "tests/emulator/engine.hpp"

namespace portile::emulator {

/// The thread whose code runs now.
const thread_view& running_thread();

template <class Atom, class Sum>
void multiply_add(Sum& sum, const std::uint32_t (&a)[Atom::words], const std::uint32_t (&b)[Atom::words],
                  site where) {
  const thread_view& t = running_thread();
  struct factors {
    std::uint32_t a[Atom::words], b[Atom::words];
  };
  factors mine, all[Atom::wave];
  static_assert(sizeof mine % 8 == 0);
  std::memcpy(mine.a, a, sizeof a);
  std::memcpy(mine.b, b, sizeof b);
  for (std::size_t i = 0; i < sizeof mine; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(&mine) + i, 8);
    const std::uint64_t* words = exchange(t, word, where);
    for (int l = 0; l < Atom::wave; ++l) std::memcpy(reinterpret_cast<char*>(&all[l]) + i, &words[l], 8);
  }
  // The factors by channel: a lane's results share one column.
  const int lane = t.thread % Atom::wave;
  float column[Atom::depth] = {};
  const auto value = [](const std::uint32_t* words, int i) {
    typename Atom::factor f;
    std::memcpy(&f, reinterpret_cast<const char*>(words) + static_cast<std::size_t>(i) * sizeof f, sizeof f);
    const float v = hip::to_float(f);
    if constexpr (std::is_same_v<typename Atom::factor, hip::tf32>) require_tf32(v);
    return v;
  };
  for (int l = 0; l < Atom::wave; ++l)
    for (int i = 0; i < Atom::values; ++i)
      if (const hip::place at = Atom::b(l, i); at.col == Atom::result(lane, 0).col)
        column[at.row] = value(all[l].b, i);
  for (int r = 0; r < Atom::results; ++r) {
    const int row = Atom::result(lane, r).row;
    for (int group = 0; group < Atom::groups; ++group) {
      const int from = group * Atom::rows + row;
      for (int i = 0; i < Atom::values; ++i)
        sum[r] = std::fmaf(value(all[from].a, i), column[Atom::a(from, i).col], sum[r]);
    }
  }
}

}  // namespace portile::emulator
