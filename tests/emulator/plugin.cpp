// A backend whose devices are the emulator: host memory behind guard bands, and the kernels of backends/gpu.
// Built twice, as a CUDA device with waves of 32 lanes and as a HIP device with waves of 64.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <portile/core/registry.hpp>
#include <portile/core/version.hpp>

#include "backends/gpu/platform.hpp"

namespace portile::gpu {
extern const portile_implementation* const implementation_list[];
extern const unsigned long implementation_count;
}  // namespace portile::gpu

namespace portile::emulator {
namespace {

constexpr device_kind kind = PORTILE_EMULATED_WAVE == 64 ? device_kind::hip : device_kind::cuda;
constexpr std::size_t band = 512;
constexpr unsigned char guard = 0x5A;

std::mutex mutex;
std::map<void*, std::size_t>& allocations() {
  static auto* m = new std::map<void*, std::size_t>;
  return *m;
}

/// Throws when something was written beside an allocation.
void check_bands() {
  const std::lock_guard lock(mutex);
  for (const auto& [p, bytes] : allocations()) {
    const auto* start = static_cast<const unsigned char*>(p);
    for (std::size_t i = 0; i < band; ++i)
      if (start[bytes + i] != guard || *(start - 1 - i) != guard)
        throw error(status_code::device_error, "emulator: written outside of an allocation of " +
                                                   std::to_string(bytes) + " bytes, " + std::to_string(i) +
                                                   " bytes away from it");
  }
}

std::int32_t allocate(std::int32_t, std::uint64_t bytes, std::int32_t, void** out, char* text,
                      std::size_t size) {
  return plugin::guarded(text, size, [&] {
    const std::size_t whole = (bytes + 2 * band + 511) / 256 * 256;
    auto* base = static_cast<unsigned char*>(std::aligned_alloc(256, whole));
    if (!base) throw std::bad_alloc();
    std::memset(base, guard, whole);
    std::memset(base + band, 0xA5, bytes);
    *out = base + band;
    const std::lock_guard lock(mutex);
    allocations()[*out] = bytes;
  });
}
std::int32_t release(std::int32_t, void* p, std::int32_t, char* text, std::size_t size) {
  return plugin::guarded(text, size, [&] {
    check_bands();
    const std::lock_guard lock(mutex);
    if (!allocations().erase(p))
      throw error(status_code::device_error, "emulator: releases what it did not allocate");
    std::free(static_cast<unsigned char*>(p) - band);
  });
}
std::int32_t stream_wait(std::int32_t, void*, char* text, std::size_t size) {
  return plugin::guarded(text, size, [] { check_bands(); });
}

// The host's run time, but for memory between guard bands.
const portile_runtime runtime_table = [] {
  portile_runtime t = detail::cpu_runtime();
  t.allocate = &allocate;
  t.release = &release;
  t.stream_wait = &stream_wait;
  return t;
}();

struct tables {
  portile_device_info device{};
  std::vector<portile_implementation> entries;
  std::vector<const portile_implementation*> list;
  portile_backend backend{};

  tables() {
    device.kind = static_cast<std::int32_t>(kind);
    std::strcpy(device.name, PORTILE_EMULATED_WAVE == 64 ? "emulated wave64" : "emulated wave32");
    std::strcpy(device.arch, "emulated");
    device.memory = std::uint64_t{1} << 30;
    device.num_sms = 4;
    device.wave_size = PORTILE_EMULATED_WAVE;
    device.max_shared = kind == device_kind::cuda ? 227 * 1024 : 64 * 1024;
    if (kind == device_kind::cuda)
      device.aspects = std::uint64_t{1} << static_cast<unsigned>(aspect::tf32_mma);
    device.max_threads = 1024;
    entries.reserve(gpu::implementation_count);
    for (unsigned long i = 0; i < gpu::implementation_count; ++i) {
      entries.push_back(*gpu::implementation_list[i]);
      entries.back().device_kind = static_cast<std::int32_t>(kind);
      list.push_back(&entries.back());
    }
    backend = plugin::make_backend(gpu::platform_name, PORTILE_VERSION, kind, list.data(), list.size());
    backend.num_devices = 1;
    backend.devices = &device;
    backend.runtime = &runtime_table;
  }
};

}  // namespace
}  // namespace portile::emulator

extern "C" __attribute__((visibility("default"))) std::int32_t portile_backend_entry(
    const portile_host*, const portile_backend** out, char*, std::size_t) {
  static const auto* t = new portile::emulator::tables;
  *out = &t->backend;
  return 0;
}
