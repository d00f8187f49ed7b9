#pragma once
// Makes a table entry out of the function `compute(space, problem)` that stands beside each problem struct.
#include <portile/core/plugin.hpp>

#include "backends/reference/session.hpp"
#include "backends/reference/space.hpp"

namespace portile::reference {

template <class P>
struct adapter {
  static plugin::verdict supports(const portile_device_info&, const P&) { return plugin::accept(); }
  /// What `workspace_bytes(problem)` beside the compute function says; compute finds it as space.workspace.
  static std::uint64_t workspace(const portile_device_info&, const P& p) {
    if constexpr (requires { workspace_bytes(p); }) return static_cast<std::uint64_t>(workspace_bytes(p));
    return 0;
  }
  static void launch(const portile_launch& l, const P& p) {
    using exec_space = Kokkos::DefaultHostExecutionSpace;
    const session_lock lock;
    const space<exec_space> s{exec_space(), trap_sink(l.trap), l.workspace};
    compute(s, p);
    s.exec.fence();
  }
};

}  // namespace portile::reference
