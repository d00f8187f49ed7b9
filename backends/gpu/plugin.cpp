// The CUDA and the HIP plug-in: devices of this node, the run-time table, the entry. Written once, because
// the two run-time APIs differ in the prefix of their names.
#include <algorithm>
#include <cstring>
#include <vector>

#include <portile/core/version.hpp>

#include "backends/gpu/platform.hpp"

#define API(name) PORTILE_GPU_API(name)

namespace portile::gpu {

extern const portile_implementation* const implementation_list[];
extern const unsigned long implementation_count;

namespace {

API(Stream_t) stream_of(void* s) { return static_cast<API(Stream_t)>(s); }
API(Event_t) event_of(void* e) { return static_cast<API(Event_t)>(e); }

/// Runs f with the device current and turns exceptions into a code and its text.
template <class F>
std::int32_t on_device(std::int32_t ordinal, char* text, std::size_t size, F f) {
  return plugin::guarded(text, size, [&] {
    const current_device guard(ordinal);
    f();
  });
}

std::int32_t allocate(std::int32_t d, std::uint64_t bytes, std::int32_t host, void** out, char* text,
                      std::size_t size) {
  return on_device(d, text, size, [&] {
    const std::size_t n = std::max<std::uint64_t>(bytes, 256);
    const std::string what = "allocate " + std::to_string(bytes) + " bytes";
#if defined(PORTILE_GPU_HIP)
    require_success(host ? hipHostMalloc(out, n, 0) : hipMalloc(out, n), what.c_str());
#else
    require_success(host ? cudaMallocHost(out, n) : cudaMalloc(out, n), what.c_str());
#endif
  });
}
std::int32_t release(std::int32_t d, void* p, std::int32_t host, char* text, std::size_t size) {
  return on_device(d, text, size, [&] {
#if defined(PORTILE_GPU_HIP)
    require_success(host ? hipHostFree(p) : hipFree(p), "release memory");
#else
    require_success(host ? cudaFreeHost(p) : cudaFree(p), "release memory");
#endif
  });
}
std::int32_t copy(std::int32_t d, void* s, void* dst, const void* src, std::uint64_t bytes, char* text,
                  std::size_t size) {
  return on_device(d, text, size, [&] {
    require_success(API(MemcpyAsync)(dst, src, bytes, API(MemcpyDefault), stream_of(s)), "copy");
  });
}
std::int32_t fill(std::int32_t d, void* s, void* dst, std::int32_t byte, std::uint64_t bytes, char* text,
                  std::size_t size) {
  return on_device(d, text, size,
                   [&] { require_success(API(MemsetAsync)(dst, byte, bytes, stream_of(s)), "fill"); });
}
std::int32_t stream_create(std::int32_t d, void** stream, char* text, std::size_t size) {
  return on_device(d, text, size, [&] {
    API(Stream_t) s{};
    require_success(API(StreamCreateWithFlags)(&s, API(StreamNonBlocking)), "create a stream");
    *stream = s;
  });
}
std::int32_t stream_destroy(std::int32_t d, void* s, char* text, std::size_t size) {
  return on_device(d, text, size,
                   [&] { require_success(API(StreamDestroy)(stream_of(s)), "destroy a stream"); });
}
std::int32_t stream_wait(std::int32_t d, void* s, char* text, std::size_t size) {
  return on_device(d, text, size,
                   [&] { require_success(API(StreamSynchronize)(stream_of(s)), "wait for a stream"); });
}
std::int32_t stream_capturing(std::int32_t d, void* s, std::int32_t* capturing, char* text,
                              std::size_t size) {
  return on_device(d, text, size, [&] {
    API(StreamCaptureStatus) status{};
    require_success(API(StreamIsCapturing)(stream_of(s), &status), "ask whether a stream is captured");
    *capturing = status != API(StreamCaptureStatusNone);
  });
}
std::int32_t event_create(std::int32_t d, void** event, char* text, std::size_t size) {
  return on_device(d, text, size, [&] {
    API(Event_t) e{};
    require_success(API(EventCreate)(&e), "create an event");
    *event = e;
  });
}
std::int32_t event_destroy(std::int32_t d, void* e, char* text, std::size_t size) {
  return on_device(d, text, size,
                   [&] { require_success(API(EventDestroy)(event_of(e)), "destroy an event"); });
}
std::int32_t event_record(std::int32_t d, void* e, void* s, char* text, std::size_t size) {
  return on_device(d, text, size,
                   [&] { require_success(API(EventRecord)(event_of(e), stream_of(s)), "record an event"); });
}
std::int32_t event_wait(std::int32_t d, void* e, char* text, std::size_t size) {
  return on_device(d, text, size,
                   [&] { require_success(API(EventSynchronize)(event_of(e)), "wait for an event"); });
}
std::int32_t event_elapsed(std::int32_t d, void* from, void* to, double* ms, char* text, std::size_t size) {
  return on_device(d, text, size, [&] {
    float f = 0;
    require_success(API(EventElapsedTime)(&f, event_of(from), event_of(to)), "time between events");
    *ms = f;
  });
}

constexpr portile_runtime runtime_table{
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

void set_text(char* to, std::size_t size, std::string_view from) { to[from.copy(to, size - 1)] = 0; }

portile_device_info describe(int ordinal, const API(DeviceProp_t) & prop) {
  portile_device_info d{};
  d.kind = static_cast<std::int32_t>(platform_kind);
  d.ordinal = ordinal;
  set_text(d.name, sizeof d.name, prop.name);
#if defined(PORTILE_GPU_HIP)
  set_text(d.arch, sizeof d.arch, prop.gcnArchName);
  if (char* features = std::strchr(d.arch, ':')) *features = 0;  // "gfx942:sramecc+:xnack-"
  d.max_shared = static_cast<std::int32_t>(prop.sharedMemPerBlock);
#else
  std::snprintf(d.arch, sizeof d.arch, "sm_%d%d", prop.major, prop.minor);
  d.max_shared = static_cast<std::int32_t>(prop.sharedMemPerBlockOptin);
#endif
  d.aspects = aspects_of_arch(d.arch);
  d.memory = prop.totalGlobalMem;
  d.num_sms = prop.multiProcessorCount;
  d.wave_size = prop.warpSize;
  d.max_threads = prop.maxThreadsPerBlock;
  return d;
}

/// Devices of this node, or why there are none. Makes no context on any of them.
struct node {
  std::vector<portile_device_info> devices;
  std::string reason;

  node() {
    int count = 0;
    const API(Error_t) e = API(GetDeviceCount)(&count);
    if (e != API(Success) || count == 0) {
      (void)API(GetLastError)();
      int driver = 0;
      const bool no_driver = API(DriverGetVersion)(&driver) != API(Success) || driver == 0;
      (void)API(GetLastError)();
      reason = no_driver           ? "no driver on this machine"
               : e != API(Success) ? API(GetErrorString)(e)
                                   : "the driver reports no device";
      if (no_driver && e != API(Success)) reason += std::string(" (") + API(GetErrorString)(e) + ")";
      return;
    }
    for (int i = 0; i < count; ++i) {
      API(DeviceProp_t) prop;
      if (API(GetDeviceProperties)(&prop, i) == API(Success)) devices.push_back(describe(i, prop));
    }
  }
};

}  // namespace
}  // namespace portile::gpu

extern "C" __attribute__((visibility("default"))) std::int32_t portile_backend_entry(
    const portile_host*, const portile_backend** out, char* text, std::size_t size) {
  using namespace portile;
  return plugin::guarded(text, size, [&] {
    // Leaked on purpose: queues in static objects outlive the plug-in's own static objects.
    static const gpu::node& node = *new gpu::node;
    static const portile_backend& table = *[] {
      auto* b =
          new portile_backend(plugin::make_backend(gpu::platform_name, PORTILE_VERSION, gpu::platform_kind,
                                                   gpu::implementation_list, gpu::implementation_count));
      b->num_devices = static_cast<std::int32_t>(node.devices.size());
      b->devices = node.devices.data();
      b->no_device_reason = node.reason.empty() ? nullptr : node.reason.c_str();
      b->runtime = &gpu::runtime_table;
      return b;
    }();
    *out = &table;
  });
}
