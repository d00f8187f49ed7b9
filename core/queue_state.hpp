#pragma once
// Internal: what queues share. Not installed.
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <portile/core/composite.hpp>
#include <portile/core/dispatch.hpp>
#include <portile/core/queue.hpp>
#include <portile/core/registry.hpp>

namespace portile::detail {

/// Calls an ABI function and turns its code into an exception.
template <class F, class... A>
void call(F f, A... a) {
  char text[512];
  text[0] = 0;
  const std::int32_t code = f(a..., text, sizeof text);
  if (code == 0) return;
  text[sizeof text - 1] = 0;
  throw error(failure_code(code), *text ? text : "the device's run time failed");
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
  bool arena_captured = false;        ///< a graph holds its address
  std::vector<void*> retired_arenas;  ///< outgrown ones that graphs hold: they live as long as the queue

  // Checked queues: a ring of device words, and which launch took which.
  static constexpr int num_traps = 128;
  std::uint64_t* traps = nullptr;
  struct pending_trap {
    const op_info* op;
    int word;
    bool captured;  ///< belongs to a graph: looked at again after every replay
  };
  std::vector<pending_trap> pending;
  const op_info* broken_op =
      nullptr;  ///< of the earliest launch whose data broke a rule, until wait() reports it
  std::uint64_t broken_word = 0;

  // The latest plans of each operation, latest first: another run with the same metadata skips the checks.
  // Several, because one operation often alternates between a few shapes.
  static constexpr std::size_t max_plans = 8;
  std::unordered_map<const op_info*, std::vector<std::shared_ptr<plan_state>>> plans;

  ~queue_state();
  bool capturing() const;
  /// Workspace of at least `bytes`; throws capture_unsafe when it would have to grow inside a capture.
  void* workspace(std::uint64_t bytes);
  /// The word for the next launch of `op`; null on an unchecked queue.
  std::uint64_t* next_trap(const op_info& op);
  /// Takes the word back: its launch did not happen.
  void drop_trap(const std::uint64_t* word);
  /// Waits, then reads and resets the words.
  void collect_traps();
  void wait();
};

/// What dispatch picks for a problem that check() has passed.
struct resolution {
  implementation_ref choice;  ///< entry null: nothing takes it
  bool fallback = false;      ///< an implementation of the host, on copies
  std::uint64_t workspace_bytes = 0;
  std::string refusal;           ///< every candidate and its reason, when nothing takes it
  composition::outline outline;  ///< of a chosen composite
};
resolution resolve(const portile_device_info& device, std::string_view device_text, const op_info& op,
                   const void* problem, std::string_view force, bool host_fallback);

/// What the option, else the first rule that names the operation, forces; empty: nothing.
std::string forced_for(std::string_view op, std::string_view option = {});

}  // namespace portile::detail
