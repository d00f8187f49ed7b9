// The host's own run-time table: plain memory, work that is done when it returns.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <portile/core/registry.hpp>

namespace portile {
namespace {

using clock = std::chrono::steady_clock;

std::int32_t allocate(std::int32_t, std::uint64_t bytes, std::int32_t, void** out, char* text,
                      std::size_t size) {
  // Never null for 0 bytes; sizes that would wrap around are left to fail.
  *out = bytes > ~std::uint64_t{0} - 255
             ? nullptr
             : std::aligned_alloc(256, (std::max<std::uint64_t>(bytes, 1) + 255) / 256 * 256);
  if (*out) return 0;
  std::snprintf(text, size, "host: %llu bytes: out of memory", static_cast<unsigned long long>(bytes));
  return static_cast<std::int32_t>(status_code::out_of_memory);
}
std::int32_t release(std::int32_t, void* p, std::int32_t, char*, std::size_t) { return std::free(p), 0; }
std::int32_t copy(std::int32_t, void*, void* dst, const void* src, std::uint64_t bytes, char*, std::size_t) {
  if (bytes) std::memmove(dst, src, bytes);
  return 0;
}
std::int32_t fill(std::int32_t, void*, void* dst, std::int32_t byte, std::uint64_t bytes, char*,
                  std::size_t) {
  if (bytes) std::memset(dst, byte, bytes);
  return 0;
}
std::int32_t stream_create(std::int32_t, void** stream, char*, std::size_t) { return *stream = nullptr, 0; }
std::int32_t stream_destroy(std::int32_t, void*, char*, std::size_t) { return 0; }
std::int32_t stream_wait(std::int32_t, void*, char*, std::size_t) { return 0; }
std::int32_t stream_capturing(std::int32_t, void*, std::int32_t* capturing, char*, std::size_t) {
  return *capturing = 0, 0;
}
std::int32_t event_create(std::int32_t, void** e, char* text, std::size_t size) {
  *e = new (std::nothrow) clock::time_point;
  if (*e) return 0;
  std::snprintf(text, size, "host: event: out of memory");
  return static_cast<std::int32_t>(status_code::out_of_memory);
}
std::int32_t event_destroy(std::int32_t, void* e, char*, std::size_t) {
  return delete static_cast<clock::time_point*>(e), 0;
}
std::int32_t event_record(std::int32_t, void* e, void*, char*, std::size_t) {
  *static_cast<clock::time_point*>(e) = clock::now();
  return 0;
}
std::int32_t event_wait(std::int32_t, void*, char*, std::size_t) { return 0; }
std::int32_t event_elapsed(std::int32_t, void* from, void* to, double* ms, char*, std::size_t) {
  *ms = std::chrono::duration<double, std::milli>(*static_cast<clock::time_point*>(to) -
                                                  *static_cast<clock::time_point*>(from))
            .count();
  return 0;
}

}  // namespace

const portile_runtime& detail::cpu_runtime() {
  static constexpr portile_runtime table{
      sizeof(portile_runtime),
      &allocate,
      &release,
      &copy,
      &fill,
      &stream_create,
      &stream_destroy,
      &stream_wait,
      &stream_capturing,
      &event_create,
      &event_destroy,
      &event_record,
      &event_wait,
      &event_elapsed,
  };
  return table;
}

}  // namespace portile
