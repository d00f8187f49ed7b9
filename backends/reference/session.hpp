#pragma once
#include <mutex>

namespace portile::reference {

/// Held during a reference launch. Kokkos 3.4 is not thread-safe, so launches take turns; the first one
/// initialises Kokkos unless the application did.
class session_lock {
 public:
  session_lock();

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace portile::reference
