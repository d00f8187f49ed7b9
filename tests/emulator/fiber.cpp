// A fortified longjmp refuses to change stacks.
#undef _FORTIFY_SOURCE
#include "tests/emulator/fiber.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <memory>

// AddressSanitizer wants to know about every change of stacks.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define START_SWITCH(keep, bottom, size) __sanitizer_start_switch_fiber(keep, bottom, size)
#define FINISH_SWITCH(kept, bottom, size) __sanitizer_finish_switch_fiber(kept, bottom, size)
#else
#define START_SWITCH(keep, bottom, size) (void)0
#define FINISH_SWITCH(kept, bottom, size) (void)0
#endif

namespace portile::emulator {

namespace {
constexpr std::size_t stack_bytes = 128 * 1024, mark_bytes = 256;
constexpr unsigned char mark = 0xC7;
}  // namespace

// makecontext gives a fiber its stack; after that _setjmp and _longjmp switch, because swapcontext saves the
// signal mask with two system calls each time.
struct fiber::state {
  std::unique_ptr<unsigned char[]> stack{new unsigned char[stack_bytes]};
  ucontext_t context{};
  jmp_buf inside, outside;
  void (*function)(void*) = nullptr;
  void* argument = nullptr;
  bool started = false, done = true;
  // For AddressSanitizer: what either side left, and the resumer's stack.
  void *kept_inside = nullptr, *kept_outside = nullptr;
  const void* outer_bottom = nullptr;
  std::size_t outer_size = 0;

  static void enter(unsigned high, unsigned low);
  [[noreturn]] void leave();
};

// makecontext passes ints only.
void fiber::state::enter(unsigned high, unsigned low) {
  auto& s = *reinterpret_cast<state*>((static_cast<std::uintptr_t>(high) << 32) | low);
  FINISH_SWITCH(nullptr, &s.outer_bottom, &s.outer_size);
  s.function(s.argument);
  s.done = true;
  s.leave();
}

void fiber::state::leave() {
  START_SWITCH(done ? nullptr : &kept_inside, outer_bottom, outer_size);
  _longjmp(outside, 1);
}

fiber::fiber() : state_(new state) { std::memset(state_->stack.get(), mark, mark_bytes); }
fiber::~fiber() { delete state_; }

void fiber::start(void (*f)(void*), void* argument) {
  state_->function = f;
  state_->argument = argument;
  state_->started = state_->done = false;
}

void fiber::resume() {
  state& s = *state_;
  if (_setjmp(s.outside) != 0) {
    FINISH_SWITCH(state_->kept_outside, nullptr, nullptr);
    return;
  }
  START_SWITCH(&s.kept_outside, s.stack.get(), stack_bytes);
  if (s.started) _longjmp(s.inside, 1);
  s.started = true;
  getcontext(&s.context);
  s.context.uc_stack.ss_sp = s.stack.get();
  s.context.uc_stack.ss_size = stack_bytes;
  s.context.uc_link = nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(&s);
  makecontext(&s.context, reinterpret_cast<void (*)()>(&state::enter), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  setcontext(&s.context);
}

void fiber::suspend() {
  if (_setjmp(state_->inside) == 0) state_->leave();
  FINISH_SWITCH(state_->kept_inside, &state_->outer_bottom, &state_->outer_size);
}

bool fiber::done() const { return state_->done; }
const void* fiber::stack() const { return state_->stack.get(); }
std::size_t fiber::stack_size() { return stack_bytes; }

bool fiber::overflowed() const {
  for (std::size_t i = 0; i < mark_bytes; ++i)
    if (state_->stack[i] != mark) return true;
  return false;
}

}  // namespace portile::emulator
