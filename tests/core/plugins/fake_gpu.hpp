#pragma once
// What the fake device counts and what a test may set. Reached through the plug-in's second symbol,
// fake_gpu_control.
#include <atomic>
#include <cstdint>

namespace portile::test {

struct fake_gpu_control {
  std::atomic<int> allocations{0}, releases{0}, copies{0}, fills{0}, waits{0}, launches{0}, supports_calls{0};
  std::atomic<int> streams{0}, events{0};
  std::atomic<bool> capturing{false};       ///< every stream claims to be in a capture
  std::atomic<bool> out_of_memory{false};   ///< allocations fail
  std::atomic<void*> workspace{nullptr};    ///< of the latest launch
  std::atomic<std::int64_t> max_blocks{0};  ///< of the latest launch
  std::atomic<std::uint64_t> copied_bytes{0};
};

}  // namespace portile::test
