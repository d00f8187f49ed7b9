#pragma once
// Internal: what queues share. Not installed.
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <portile/core/dispatch.hpp>
#include <portile/core/queue.hpp>
#include <portile/core/registry.hpp>

namespace portile::detail {

/// Calls an ABI function and turns its code into an exception.
template <class F, class... A>
void call(F f, A... a) {
  char text[512] = "";
  const std::int32_t code = f(a..., text, sizeof text);
  if (code != 0) throw error(static_cast<status_code>(code), *text ? text : "the device's run time failed");
}

struct queue_state {
  device where;
  const portile_device_info* info = nullptr;
  const portile_runtime* runtime = nullptr;
  void* stream = nullptr;
  bool owns_stream = false;
  queue_properties properties;

  std::recursive_mutex mutex;
  void* arena = nullptr;
  std::uint64_t arena_bytes = 0;

  // Checked queues: a ring of device words, and which launch took which.
  static constexpr int num_traps = 128;
  std::uint64_t* traps = nullptr;
  struct pending_trap {
    const op_info* op;
    int word;
    bool captured;  ///< belongs to a graph: looked at again after every replay
  };
  std::vector<pending_trap> pending;

  // The last plan of each operation: a second run with the same metadata skips the checks.
  std::map<const op_info*, std::shared_ptr<plan_state>> last_plans;

  ~queue_state();
  bool capturing() const;
  /// Workspace of at least `bytes`; throws capture_unsafe when it would have to grow inside a capture.
  void* workspace(std::uint64_t bytes);
  /// The word for the next launch of `op`; null on an unchecked queue.
  std::uint64_t* next_trap(const op_info& op);
  void wait();
};

}  // namespace portile::detail
