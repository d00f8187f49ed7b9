// A fortified longjmp refuses to change stacks.
#undef _FORTIFY_SOURCE
#include "tests/emulator/fiber.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <memory>

namespace portile::emulator {

namespace {
constexpr std::size_t stack_bytes = 128 * 1024, mark_bytes = 256;
constexpr unsigned char mark = 0xC7;
}  // namespace

// makecontext gives a fiber its stack; after that _setjmp and _longjmp switch, because swapcontext saves the signal mask
// with two system calls each time.
struct fiber::state {
  std::unique_ptr<unsigned char[]> stack{new unsigned char[stack_bytes]};
  ucontext_t context{}, starter{};
  jmp_buf inside, outside;
  void (*function)(void*) = nullptr;
  void* argument = nullptr;
  bool started = false, done = true;
};

namespace {

// makecontext passes ints only.
void enter(unsigned high, unsigned low) {
  auto* f = reinterpret_cast<void (**)(void*)>((static_cast<std::uintptr_t>(high) << 32) | low);
  (*f)(f);
}

struct entry {
  void (*call)(void*);
  void* self;
};

}  // namespace

fiber::fiber() : state_(new state) { std::memset(state_->stack.get(), mark, mark_bytes); }
fiber::~fiber() { delete state_; }

void fiber::start(void (*f)(void*), void* argument) {
  state_->function = f;
  state_->argument = argument;
  state_->started = state_->done = false;
}

void fiber::resume() {
  state& s = *state_;
  if (_setjmp(s.outside) != 0) return;
  if (s.started) _longjmp(s.inside, 1);
  s.started = true;
  getcontext(&s.context);
  s.context.uc_stack.ss_sp = s.stack.get();
  s.context.uc_stack.ss_size = stack_bytes;
  s.context.uc_link = nullptr;
  static thread_local entry e;
  e = {[](void* p) {
         state& self = *static_cast<state*>(static_cast<entry*>(p)->self);
         self.function(self.argument);
         self.done = true;
         _longjmp(self.outside, 1);
       },
       &s};
  const auto address = reinterpret_cast<std::uintptr_t>(&e);
  makecontext(&s.context, reinterpret_cast<void (*)()>(&enter), 2, static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  setcontext(&s.context);
}

void fiber::suspend() {
  if (_setjmp(state_->inside) == 0) _longjmp(state_->outside, 1);
}

bool fiber::done() const { return state_->done; }

bool fiber::overflowed() const {
  for (std::size_t i = 0; i < mark_bytes; ++i)
    if (state_->stack[i] != mark) return true;
  return false;
}

}  // namespace portile::emulator
