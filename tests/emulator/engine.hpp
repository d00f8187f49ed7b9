#pragma once
// Runs GPU kernels on the host: the threads of a block are fibers, and everything that lanes do together is a
// place where they wait for each other. What a real device would leave undefined is an error here: a barrier
// that not every thread reaches, a shuffle in which a lane of the wave is missing or at another place of the
// code, shared memory beyond what the launch asked for, a vector access to a misaligned address, and, when
// asked for, a race (races.hpp).
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "tests/emulator/races.hpp"

namespace portile::emulator {

struct block_run;

/// What one thread of a running block sees.
struct thread_view {
  block_run* run;
  int thread;
};

using site = std::source_location;

void wait_barrier(const thread_view& t, site where);
/// Waits for the lanes of the wave; what they did before is ordered before what they do after.
void wait_wave(const thread_view& t, site where);
/// Gives the lane's 8 bytes to its wave and returns those of all lanes, valid until the lane's next exchange.
const std::uint64_t* exchange(const thread_view& t, std::uint64_t mine, site where);
void* shared_memory(const thread_view& t, std::size_t offset, std::size_t size);
std::int64_t block_index(const thread_view& t);
std::int64_t grid_size(const thread_view& t);
[[noreturn]] void fail(const char* text);

template <class T>
T aligned_load(const void* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % sizeof(T) != 0) fail("misaligned vector load");
  return *static_cast<const T*>(p);
}
template <class T>
void aligned_store(void* p, T v) {
  if (reinterpret_cast<std::uintptr_t>(p) % sizeof(T) != 0) fail("misaligned vector store");
  *static_cast<T*>(p) = v;
}

/// A matrix unit would drop the low bits of other values.
inline void require_tf32(float v) {
  std::uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  if ((bits & 0x1FFFu) != 0 && v == v) fail("a factor of a tf32 product is no tf32");
}

template <int Threads, int Wave>
class block {
 public:
  static constexpr int threads = Threads;
  static constexpr int wave_size = Wave;
  static constexpr int num_waves = Threads / Wave;

  explicit block(thread_view t) : t_(t) {}

  int thread() const { return t_.thread; }
  int lane() const { return t_.thread % wave_size; }
  int wave() const { return t_.thread / wave_size; }
  std::int64_t index() const { return block_index(t_); }
  std::int64_t grid() const { return grid_size(t_); }

  template <class T>
  T* shared(std::size_t offset = 0) const {
    return static_cast<T*>(shared_memory(t_, offset, sizeof(T)));
  }
  void barrier(site where = site::current()) const { wait_barrier(t_, where); }

  template <class T>
  T shuffle(T v, int source, site where = site::current()) const {
    return pick(v, source & (wave_size - 1), where);
  }
  template <class T>
  T shuffle_xor(T v, int mask, site where = site::current()) const {
    const int source = lane() ^ mask;
    return pick(v, source < wave_size ? source : lane(), where);
  }
  template <class T>
  T shuffle_down(T v, int delta, site where = site::current()) const {
    const int source = lane() + delta;
    return pick(v, source < wave_size ? source : lane(), where);
  }
  template <class T>
  T shuffle_up(T v, int delta, site where = site::current()) const {
    const int source = lane() - delta;
    return pick(v, source >= 0 ? source : lane(), where);
  }

  // Threads switch only where they wait, so that a plain access is an atomic one.
  template <class T>
  T atomic_add(T* p, T v) const {
    return update(p, [v](T before) { return static_cast<T>(before + v); });
  }
  template <class T>
  T atomic_min(T* p, T v) const {
    return update(p, [v](T before) { return v < before ? v : before; });
  }
  template <class T>
  T atomic_max(T* p, T v) const {
    return update(p, [v](T before) { return v > before ? v : before; });
  }
  template <class T>
  T atomic_or(T* p, T v) const {
    return update(p, [v](T before) { return static_cast<T>(before | v); });
  }
  void device_fence() const { races::device_fence(); }
  void wave_barrier(site where = site::current()) const { wait_wave(t_, where); }

  static constexpr bool has_mma_tf32 = Wave == 32;
  void mma_tf32_16x8x8(float (&sum)[4], const float (&a)[4], const float (&b)[2],
                       site where = site::current()) const {
    static_assert(has_mma_tf32);
    struct {
      float v[6];
    } all[Wave];
    for (int i = 0; i < 6; i += 2) {
      const float mine[2] = {i < 4 ? a[i] : b[0], i < 4 ? a[i + 1] : b[1]};
      std::uint64_t word;
      std::memcpy(&word, mine, sizeof word);
      const std::uint64_t* words = exchange(t_, word, where);
      for (int l = 0; l < Wave; ++l) std::memcpy(&all[l].v[i], &words[l], sizeof word);
    }
    for (float v : all[lane()].v) require_tf32(v);
    for (int i = 0; i < 4; ++i) {
      const int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
      for (int k = 0; k < 8; ++k)
        sum[i] += all[row % 8 * 4 + k % 4].v[k / 4 * 2 + row / 8] * all[column * 4 + k % 4].v[4 + k / 4];
    }
  }

  void copy16_async(void* shared, const void* global) const {
    struct alignas(16) sixteen {
      std::uint64_t w[2];
    };
    aligned_store(shared, aligned_load<sixteen>(global));
  }
  void wait_copies() const {}
  void prefetch(const void*) const {}

  std::uint64_t ballot(bool predicate, site where = site::current()) const {
    const std::uint64_t* all = exchange(t_, predicate, where);
    std::uint64_t mask = 0;
    for (int l = 0; l < wave_size; ++l) mask |= all[l] << l;
    return mask;
  }
  std::uint32_t wave_max(std::uint32_t v, site where = site::current()) const {
    const std::uint64_t* all = exchange(t_, v, where);
    std::uint64_t best = 0;
    for (int l = 0; l < wave_size; ++l) best = all[l] > best ? all[l] : best;
    return static_cast<std::uint32_t>(best);
  }

 private:
  template <class T>
  T pick(T v, int source, site where) const {
    static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "as on a device");
    std::uint64_t mine = 0;
    std::memcpy(&mine, &v, sizeof v);
    const std::uint64_t* all = exchange(t_, mine, where);
    T result;
    std::memcpy(&result, &all[source], sizeof result);
    return result;
  }
  template <class T, class F>
  static T update(T* p, F f) {
    static_assert(std::is_integral_v<T> && std::is_unsigned_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                  "as on a device");
    if (reinterpret_cast<std::uintptr_t>(p) % sizeof(T) != 0) fail("misaligned atomic");
    races::begin_atomic();
    const T before = *p;
    *p = f(before);
    races::end_atomic();
    return before;
  }
  thread_view t_;
};

using body = void (*)(const thread_view&, const void* params);
/// Runs the blocks one after another; throws std::runtime_error for what a device would leave undefined.
void run_blocks(std::int64_t grid, int threads, int wave, std::size_t shared_bytes, body run,
                const void* params);

template <class K, int Wave>
void run_grid(std::int64_t grid, std::size_t shared_bytes, const typename K::params& p) {
  run_blocks(
      grid, K::threads, Wave, shared_bytes,
      [](const thread_view& t, const void* params) {
        block<K::threads, Wave> b(t);
        K::run(b, *static_cast<const typename K::params*>(params));
      },
      &p);
}

}  // namespace portile::emulator
