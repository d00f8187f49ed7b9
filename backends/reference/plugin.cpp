// The reference backend: Kokkos on the host, one implementation of every operation.
#include <Kokkos_Core.hpp>
#include <cstdlib>

#include <portile/core/plugin.hpp>
#include <portile/core/version.hpp>

#include "backends/reference/session.hpp"

namespace portile::reference {

extern const portile_implementation* const implementation_list[];
extern const unsigned long implementation_count;

namespace {

// Leaked on purpose: a launch may come from the destructor of a static object.
std::mutex& launch_mutex() {
  static std::mutex* m = new std::mutex;
  return *m;
}

bool is_finalized() {
#if KOKKOS_VERSION >= 40000
  return Kokkos::is_finalized();
#else
  return false;  // Kokkos 3 may be initialised again
#endif
}

void finalize_at_exit() {
  const std::lock_guard lock(launch_mutex());
  if (Kokkos::is_initialized()) Kokkos::finalize();
}

void initialize_once() {
  static bool done = false;  // under the launch mutex
  if (done) return;
  if (!Kokkos::is_initialized()) {  // else it is the application's own, and the application finalises it
    if (is_finalized()) return;
    Kokkos::initialize();
    std::atexit(finalize_at_exit);
  }
  done = true;
}

}  // namespace

session_lock::session_lock() : lock_(launch_mutex()) {
  initialize_once();
  if (!Kokkos::is_initialized())
    throw error(status_code::device_error,
                "reference: Kokkos is finalised, by the application or because the process ends: no launch "
                "is possible");
}

}  // namespace portile::reference

extern "C" __attribute__((visibility("default"))) std::int32_t portile_backend_entry(
    const portile_host*, const portile_backend** out, char*, std::size_t) {
  using namespace portile;
  static const portile_backend table =
      plugin::make_backend("reference", PORTILE_VERSION, device_kind::cpu, reference::implementation_list,
                           reference::implementation_count);
  *out = &table;
  return 0;
}
