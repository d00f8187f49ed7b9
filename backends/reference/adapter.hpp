#pragma once
// Makes a table entry out of the function `compute(space, problem)` that stands beside each problem struct.
#include <portile/core/plugin.hpp>

#include "backends/reference/session.hpp"
#include "backends/reference/space.hpp"

namespace portile::reference {

template <class P>
struct adapter {
  static plugin::verdict supports(const portile_device_info&, const P&) { return plugin::accept(); }
  static void launch(const portile_launch& l, const P& p) {
    using exec_space = Kokkos::DefaultHostExecutionSpace;
    const session_lock lock;
    const space<exec_space> s{exec_space(), trap_sink(l.trap)};
    compute(s, p);
    s.exec.fence();
  }
};

}  // namespace portile::reference
