#pragma once
// Finds races: two threads of a launch that touch the same byte, one of them writing, with nothing that
// orders them. The kernels are compiled with -fsanitize=thread, whose calls for every load and store end up
// here instead of in the sanitizer's run time.
//
// What orders two accesses: a barrier of their block between them; a wave_barrier, for lanes of one wave;
// both being atomic. A block that has called device_fence is taken to have seen what the blocks before it
// did.
#include <cstddef>
#include <cstdint>
#include <string>

namespace portile::emulator::races {

/// Whether accesses are watched: PORTILE_EMULATOR_RACES=1 and a build that reports them.
bool enabled();

void begin_launch();
void begin_block(std::int64_t block, int threads, int wave, const void* shared, std::size_t shared_bytes);
/// From here to `leave`, accesses are those of this thread, except to its own stack.
void enter(int thread, const void* stack, std::size_t stack_bytes);
void leave();
void barrier();
void wave_barrier(int wave);
void device_fence();
/// Between these, accesses are atomic.
void begin_atomic();
void end_atomic();
/// The first race since the last call; empty when there is none.
std::string take_report();

}  // namespace portile::emulator::races
