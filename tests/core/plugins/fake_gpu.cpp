// A backend with two devices of kind cuda, of different architecture, that are host memory. It keeps the
// promises of a device: its allocations are told apart from the caller's memory, launches on a captured
// stream may not allocate or wait, and every call is counted.
#include "core/plugins/fake_gpu.hpp"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <portile/core/plugin.hpp>

#include "core/test_op.hpp"

namespace portile::test {
namespace {

fake_gpu_control control;

std::int32_t fail(status_code code, const char* why, char* text, std::size_t size) {
  std::snprintf(text, size, "fake: %s", why);
  return static_cast<std::int32_t>(code);
}
std::int32_t unless_capturing(const char* what, char* text, std::size_t size) {
  return control.capturing ? fail(status_code::device_error, what, text, size) : 0;
}

constexpr portile_runtime runtime{
    .size = sizeof(portile_runtime),
    .allocate = [](std::int32_t, std::uint64_t bytes, std::int32_t, void** out, char* text,
                   std::size_t size) -> std::int32_t {
      if (control.out_of_memory || bytes > 1ull << 40)
        return fail(status_code::out_of_memory, "no memory", text, size);
      if (auto c = unless_capturing("allocation inside a capture", text, size)) return c;
      ++control.allocations;
      *out = std::aligned_alloc(256, (bytes + 256) / 256 * 256);
      return 0;
    },
    .release = [](std::int32_t, void* p, std::int32_t, char*, std::size_t) -> std::int32_t {
      ++control.releases;
      std::free(p);
      return 0;
    },
    .copy = [](std::int32_t, void*, void* dst, const void* src, std::uint64_t bytes, char*,
               std::size_t) -> std::int32_t {
      ++control.copies;
      control.copied_bytes += bytes;
      std::memmove(dst, src, bytes);
      return 0;
    },
    .fill = [](std::int32_t, void*, void* dst, std::int32_t byte, std::uint64_t bytes, char*,
               std::size_t) -> std::int32_t {
      ++control.fills;
      std::memset(dst, byte, bytes);
      return 0;
    },
    .stream_create = [](std::int32_t device, void** s, char*, std::size_t) -> std::int32_t {
      ++control.streams;
      *s = new int(device);
      return 0;
    },
    .stream_destroy = [](std::int32_t, void* s, char*, std::size_t) -> std::int32_t {
      --control.streams;
      delete static_cast<int*>(s);
      return 0;
    },
    .stream_wait = [](std::int32_t, void*, char* text, std::size_t size) -> std::int32_t {
      ++control.waits;
      return unless_capturing("wait inside a capture", text, size);
    },
    .stream_capturing = [](std::int32_t, void*, std::int32_t* c, char*, std::size_t) -> std::int32_t {
      *c = control.capturing;
      return 0;
    },
    .event_create = [](std::int32_t, void** e, char*, std::size_t) -> std::int32_t {
      ++control.events;
      *e = new double(0);
      return 0;
    },
    .event_destroy = [](std::int32_t, void* e, char*, std::size_t) -> std::int32_t {
      --control.events;
      delete static_cast<double*>(e);
      return 0;
    },
    .event_record = [](std::int32_t, void* e, void*, char*, std::size_t) -> std::int32_t {
      *static_cast<double*>(e) = control.launches;
      return 0;
    },
    .event_wait = [](std::int32_t, void*, char*, std::size_t) -> std::int32_t { return 0; },
    .event_elapsed = [](std::int32_t, void* a, void* b, double* ms, char*, std::size_t) -> std::int32_t {
      *ms = *static_cast<double*>(b) - *static_cast<double*>(a);
      return 0;
    },
};

// First choice: needs workspace, refuses many times.
struct picky {
  static plugin::verdict supports(const portile_device_info& device, const scale_rows& p) {
    ++control.supports_calls;
    if (std::strcmp(device.arch, "sm_90") != 0)
      return plugin::refuse(std::string("built for sm_90, the device is ") + device.arch);
    if (p.mode == "host_only") return plugin::refuse("mode = 'host_only' is not for this device");
    if (p.times > 100) return plugin::refuse("times = " + std::to_string(p.times) + " is above 100");
    if (p.times == 77) throw std::runtime_error("supports threw at times = 77");
    return plugin::accept();
  }
  static std::uint64_t workspace(const portile_device_info&, const scale_rows& p) {
    return static_cast<std::uint64_t>(p.x.numel()) * 4;
  }
  static void launch(const portile_launch& l, const scale_rows& p) {
    if (p.mode == "throws") throw 42;
    if (p.mode == "fails") throw error(status_code::out_of_memory, "the launch failed on purpose");
    ++control.launches;
    control.workspace = l.workspace;
    control.max_blocks = l.max_blocks;
    if (l.workspace_bytes) std::memset(l.workspace, 0x11, l.workspace_bytes);
    compute(l, p);
  }
};

// Second choice.
struct plain {
  static plugin::verdict supports(const portile_device_info&, const scale_rows& p) {
    return p.mode == "host_only" ? plugin::refuse("mode = 'host_only' is not for this device")
                                 : plugin::accept();
  }
  static void launch(const portile_launch& l, const scale_rows& p) {
    ++control.launches;
    control.workspace = l.workspace;
    compute(l, p);
  }
};

constexpr portile_implementation picky_entry =
    plugin::make_implementation<scale_rows, picky>("cuda.picky", device_kind::cuda, "sm_90");
constexpr portile_implementation plain_entry =
    plugin::make_implementation<scale_rows, plain>("cuda.plain", device_kind::cuda, "sm_90");
constexpr const portile_implementation* list[] = {&picky_entry, &plain_entry};

}  // namespace
}  // namespace portile::test

extern "C" __attribute__((visibility("default"))) void* fake_gpu_control_entry() {
  return &portile::test::control;
}

extern "C" __attribute__((visibility("default"))) std::int32_t portile_backend_entry(
    const portile_host* host, const portile_backend** out, char*, std::size_t) {
  using namespace portile;
  static portile_device_info devices[2];
  const char* const archs[2] = {"sm_90", "sm_80"};
  for (int i = 0; i < 2; ++i) {
    devices[i] = {.kind = PORTILE_DEVICE_CUDA,
                  .ordinal = i,
                  .name = "fake device",
                  .arch = "",
                  .aspects = aspects_of_arch(archs[i]),
                  .memory = 1 << 30,
                  .num_sms = 16,
                  .wave_size = 32,
                  .max_shared = 1 << 16,
                  .max_threads = 1024};
    std::strcpy(devices[i].arch, archs[i]);
  }
  static portile_backend table =
      plugin::make_backend("fake", "1", device_kind::cuda, test::list, std::size(test::list));
  table.devices = devices;
  table.num_devices = 2;
  table.runtime = &test::runtime;
  host->log("load", "the fake device says hello");
  *out = &table;
  return 0;
}
