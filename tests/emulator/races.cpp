#include "tests/emulator/races.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <dlfcn.h>

namespace portile::emulator::races {
namespace {

constexpr std::uint32_t nobody = ~0u;

/// Who touched a byte, and when: the number of barriers of the block and of the wave before.
struct access {
  std::uint32_t block = nobody, epoch = 0;
  std::uint16_t thread = 0, wave_epoch = 0;
  bool atomic = false;
};
/// Of one byte: the last write, and the last reads of two threads.
struct cell {
  access write, reads[2];
};

/// Cells of global memory by address: open addressing, emptied for every launch.
class cell_table {
 public:
  cell& of(std::uintptr_t address) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    slot& s = find(address);
    if (s.address == 0) {
      s.address = address;
      ++used_;
    }
    return s.value;
  }
  void clear() {
    if (used_ == 0) return;
    slots_.assign(1 << 12, {});
    used_ = 0;
  }

 private:
  struct slot {
    std::uintptr_t address = 0;
    cell value;
  };
  slot& find(std::uintptr_t address) {
    std::size_t i = address * 0x9e3779b97f4a7c15u >> 20;
    for (;; ++i) {
      slot& s = slots_[i & (slots_.size() - 1)];
      if (s.address == address || s.address == 0) return s;
    }
  }
  void grow() {
    std::vector<slot> old(slots_.empty() ? 1 << 12 : 2 * slots_.size());
    old.swap(slots_);
    for (const slot& s : old)
      if (s.address) find(s.address) = s;
  }
  std::vector<slot> slots_;
  std::size_t used_ = 0;
};

/// Whether a thread of a watched launch runs: what every access asks first, so no thread-local variable.
std::atomic<bool> watching{false};

struct state {
  bool inside = false, fenced = false, atomic = false;
  access now;
  int wave = 1;
  std::vector<std::uint16_t> wave_epochs;
  std::uintptr_t shared = 0, shared_bytes = 0, stack = 0, stack_bytes = 0;
  std::vector<cell> shared_cells;
  cell_table global_cells;
  std::string report;
};
state& current() {
  static thread_local state s;
  return s;
}

bool ordered(const state& s, const access& before, bool shared) {
  if (before.block == nobody) return true;
  // Shared memory is another one for every block.
  if (before.block != s.now.block) return shared || s.fenced;
  if (before.thread == s.now.thread || before.epoch != s.now.epoch) return true;
  return before.thread / s.wave == s.now.thread / s.wave && before.wave_epoch != s.now.wave_epoch;
}

void record(state& s, const access& before, bool wrote, bool writes, std::uintptr_t address, bool shared,
            const void* where) {
  if (!s.report.empty()) return;
  const auto who = [](const access& a) {
    return "thread " + std::to_string(a.thread) + " of block " + std::to_string(a.block);
  };
  s.report = "race: " + who(s.now) + (writes ? " writes" : " reads") + " what " + who(before) +
             (wrote ? " wrote" : " read") + ", byte " +
             std::to_string(shared ? address - s.shared : address % 4096) +
             (shared ? " of shared memory" : " of a page of global memory") + ", with no barrier between";
  Dl_info info{};
  if (dladdr(where, &info) && info.dli_fname) {
    char offset[32];
    std::snprintf(
        offset, sizeof offset, "+0x%zx",
        static_cast<std::size_t>(static_cast<const char*>(where) - static_cast<const char*>(info.dli_fbase)));
    s.report += std::string(" (") + info.dli_fname + offset + ")";
  }
}

void touch(state& s, cell& c, bool writes, std::uintptr_t address, bool shared, const void* where) {
  const auto conflicts = [&](const access& before) {
    return !ordered(s, before, shared) && !(s.atomic && before.atomic);
  };
  if (conflicts(c.write)) record(s, c.write, true, writes, address, shared, where);
  access mine = s.now;
  mine.atomic = s.atomic;
  if (writes) {
    for (access& r : c.reads) {
      if (conflicts(r)) record(s, r, false, true, address, shared, where);
      r = {};
    }
    c.write = mine;
  } else {
    // Keep the reads of other threads that nothing has ordered yet: a later write may race with them.
    const bool first_is_free = ordered(s, c.reads[0], shared);
    c.reads[first_is_free ? 0 : 1] = mine;
  }
}

void on_access(const void* p, std::size_t bytes, bool writes, const void* where) {
  state& s = current();
  if (!s.inside) return;
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (address - s.stack < s.stack_bytes) return;
  const bool shared = address - s.shared < s.shared_bytes;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (shared && address + i - s.shared >= s.shared_bytes) break;
    touch(s, shared ? s.shared_cells[address + i - s.shared] : s.global_cells.of(address + i), writes,
          address + i, shared, where);
  }
}

}  // namespace

bool enabled() {
#if defined(PORTILE_EMULATOR_REPORTS_ACCESSES)
  static const bool wanted = [] {
    const char* v = std::getenv("PORTILE_EMULATOR_RACES");
    return v && *v == '1';
  }();
  return wanted;
#else
  return false;
#endif
}

void begin_launch() {
  state& s = current();
  s.global_cells.clear();
  s.shared_cells.clear();
  s.report.clear();
}
void begin_block(std::int64_t block, int threads, int wave, const void* shared, std::size_t shared_bytes) {
  state& s = current();
  s.now = {};
  s.now.block = static_cast<std::uint32_t>(block);
  s.wave = wave;
  s.fenced = false;
  s.wave_epochs.assign(static_cast<std::size_t>(threads / wave), 0);
  s.shared = reinterpret_cast<std::uintptr_t>(shared);
  s.shared_bytes = shared_bytes;
  if (s.shared_cells.size() < shared_bytes) s.shared_cells.resize(shared_bytes);
}
void enter(int thread, const void* stack, std::size_t stack_bytes) {
  state& s = current();
  s.now.thread = static_cast<std::uint16_t>(thread);
  s.now.wave_epoch = s.wave_epochs[static_cast<std::size_t>(thread / s.wave)];
  s.stack = reinterpret_cast<std::uintptr_t>(stack);
  s.stack_bytes = stack_bytes;
  s.inside = true;
  watching.store(true, std::memory_order_relaxed);
}
void leave() {
  current().inside = false;
  watching.store(false, std::memory_order_relaxed);
}
void barrier() { ++current().now.epoch; }
void wave_barrier(int wave) { ++current().wave_epochs[static_cast<std::size_t>(wave)]; }
void device_fence() { current().fenced = true; }
void begin_atomic() { current().atomic = true; }
void end_atomic() { current().atomic = false; }

std::string take_report() {
  std::string r;
  r.swap(current().report);
  return r;
}

}  // namespace portile::emulator::races

// The functions that a compiler calls for accesses under -fsanitize=thread.
#define ON_ACCESS(name, bytes, writes)                                                    \
  extern "C" void name(void* p) {                                                         \
    if (portile::emulator::races::watching.load(std::memory_order_relaxed))               \
      portile::emulator::races::on_access(p, bytes, writes, __builtin_return_address(0)); \
  }
ON_ACCESS(__tsan_read1, 1, false)
ON_ACCESS(__tsan_read2, 2, false)
ON_ACCESS(__tsan_read4, 4, false)
ON_ACCESS(__tsan_read8, 8, false)
ON_ACCESS(__tsan_read16, 16, false)
ON_ACCESS(__tsan_write1, 1, true)
ON_ACCESS(__tsan_write2, 2, true)
ON_ACCESS(__tsan_write4, 4, true)
ON_ACCESS(__tsan_write8, 8, true)
ON_ACCESS(__tsan_write16, 16, true)
ON_ACCESS(__tsan_unaligned_read2, 2, false)
ON_ACCESS(__tsan_unaligned_read4, 4, false)
ON_ACCESS(__tsan_unaligned_read8, 8, false)
ON_ACCESS(__tsan_unaligned_read16, 16, false)
ON_ACCESS(__tsan_unaligned_write2, 2, true)
ON_ACCESS(__tsan_unaligned_write4, 4, true)
ON_ACCESS(__tsan_unaligned_write8, 8, true)
ON_ACCESS(__tsan_unaligned_write16, 16, true)
extern "C" void __tsan_read_range(void* p, unsigned long n) {
  if (portile::emulator::races::watching.load(std::memory_order_relaxed))
    portile::emulator::races::on_access(p, n, false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* p, unsigned long n) {
  if (portile::emulator::races::watching.load(std::memory_order_relaxed))
    portile::emulator::races::on_access(p, n, true, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" void __tsan_vptr_read(void**) {}
