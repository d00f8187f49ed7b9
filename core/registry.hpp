#pragma once
// Backends found on this machine, their devices and implementations. Everything here is read-only for users;
// the dispatcher walks it.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <portile/core/abi.h>
#include <portile/core/device.hpp>
#include <portile/core/problem.hpp>
#include <portile/core/status.hpp>

namespace portile {

/// One plug-in file that was looked at.
struct backend_info {
  std::string name;  ///< "reference", "cuda"; the file's stem when it was refused
  std::string file;
  bool loaded = false;
  std::string reason;  ///< why it was refused, or why it has no devices; empty otherwise
  std::string version;
  std::vector<device> devices;
  const portile_backend* table = nullptr;
};

/// Loads on first use: the folder of libportile.so, or PORTILE_BACKEND_PATH (absolute folders or files, colon
/// separated, empty entries are ignored); never the current folder. Files are named libportile_backend_*.so.
PORTILE_API std::vector<backend_info> backends();

/// Loads one more plug-in file; status text names the file and the reason when it is refused. The refusal is
/// kept and shown by backends() too.
PORTILE_API status load_backend(const std::string& file);

/// A registered implementation.
struct implementation_ref {
  const portile_implementation* entry = nullptr;
  const portile_backend* backend = nullptr;
};

/// Implementations of an operation, best first: those that bring devices of their own before `reference`.
PORTILE_API std::vector<implementation_ref> implementations(std::string_view op);

namespace detail {
/// Run-time functions of a device; throws invalid_argument when it is not there.
const portile_runtime& runtime_of(device d);
/// The host's own table.
PORTILE_API const portile_runtime& cpu_runtime();
const portile_device_info& cpu_info();
/// Grows with every load: caches compare it.
std::uint64_t registry_version();
}  // namespace detail

}  // namespace portile
