#pragma once
#include <cstddef>

namespace portile::emulator {

/// A flow of control with a stack of its own. `resume` runs it until it calls `suspend` or ends.
class fiber {
 public:
  fiber();
  ~fiber();
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

  /// The next resume starts f(argument) anew; whatever ran before is forgotten without unwinding. f must not
  /// throw.
  void start(void (*f)(void*), void* argument);
  void resume();
  /// Called inside: back to whoever resumed this fiber.
  void suspend();
  bool done() const;
  const void* stack() const;
  static std::size_t stack_size();
  /// True when the deepest part of the stack was written to.
  bool overflowed() const;

 private:
  struct state;
  state* state_;
};

}  // namespace portile::emulator
