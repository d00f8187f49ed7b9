#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include <portile/core/device.hpp>
#include <portile/core/status.hpp>

namespace portile {

struct queue_properties {
  bool host_fallback = false;  ///< copy to the host reference when the device has no implementation (logged)
  bool checked = false;        ///< report broken data rules: wait() throws data_error
  int num_sms = 0;   ///< how many multiprocessors a launch may fill; 0 = all. Never changes a result
  bool pdl = false;  ///< programmatic dependent launch, where the device has it
};

class event;
namespace detail {
struct queue_state;
struct event_state;
}  // namespace detail

/// A device and an in-order stream. Copies share the stream, the workspace arena and the record of checked
/// launches; any thread may use any copy. It owns nothing that it did not create: a wrapped stream must
/// outlive it, and it must outlive the graphs that were captured through it, because they hold addresses in
/// its arena. A queue on the host has no native handle: `run` on it returns after completion.
class PORTILE_API queue {
 public:
  explicit queue(selector choose = default_selector, queue_properties properties = {});
  /// Makes a stream of its own on the device.
  explicit queue(device where, queue_properties properties = {});
  /// Wraps a stream of the caller's (cudaStream_t or hipStream_t as void*; null is the legacy default
  /// stream).
  static queue wrap(device where, void* native_stream, queue_properties properties = {});

  device get_device() const;
  void* native_handle() const;
  const queue_properties& properties() const;

  /// Blocks until everything submitted is done. On a `checked` queue throws data_error for the earliest
  /// launch whose data broke a rule, then forgets all of them.
  void wait();
  /// Marks the work submitted up to now.
  event record();

  detail::queue_state& state() const { return *state_; }

 private:
  explicit queue(std::shared_ptr<detail::queue_state> s) : state_(std::move(s)) {}
  std::shared_ptr<detail::queue_state> state_;
};

/// Completion of submitted work, with a time stamp.
class PORTILE_API event {
 public:
  void wait() const;
  /// Milliseconds from `earlier` to this one, both completed.
  double milliseconds_since(const event& earlier) const;

 private:
  friend class queue;
  std::shared_ptr<detail::event_state> state_;
};

/// USM-style memory. Pointers belong to the queue's device; `malloc_host` memory is pinned where the device
/// has that.
PORTILE_API void* malloc_device(std::size_t bytes, const queue& q);
PORTILE_API void* malloc_host(std::size_t bytes, const queue& q);
PORTILE_API void free(void* p, const queue& q);       ///< of malloc_device
PORTILE_API void free_host(void* p, const queue& q);  ///< of malloc_host
/// In order with the queue's work; any mix of host and device pointers. Host memory that is not pinned makes
/// it synchronous.
PORTILE_API void memcpy(queue& q, void* dst, const void* src, std::size_t bytes);
PORTILE_API void memset(queue& q, void* dst, int byte, std::size_t bytes);

}  // namespace portile
