#pragma once
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <portile/core/check.hpp>
#include <portile/core/problem.hpp>
#include <portile/core/queue.hpp>

namespace portile {

struct run_options {
  std::string_view implementation{};  ///< force this one; its refusal is an error
  std::int64_t max_blocks = 0;        ///< upper bound of a launch grid, for tests; never changes a result
  void* workspace = nullptr;  ///< memory of the caller on the queue's device instead of the queue's arena
  std::size_t workspace_bytes = 0;
};

/// One implementation that was considered.
struct candidate {
  std::string implementation;
  std::string backend;
  bool accepted = false;
  std::string reason;  ///< why it was refused; "yes" when accepted
};

/// The whole decision, printable.
struct explanation {
  std::string op;
  std::string device;
  std::string error;   ///< text of check() when the problem is bad; every candidate is listed all the same
  std::string chosen;  ///< empty when nothing takes the problem
  std::vector<candidate> candidates;
  PORTILE_API std::string text() const;
};
PORTILE_API std::ostream& operator<<(std::ostream& os, const explanation& e);

namespace detail {
struct plan_state;
PORTILE_API void run(queue& q, const op_info& op, const void* problem, const run_options& options);
PORTILE_API explanation explain(const portile_device_info& device, std::string_view device_text,
                                const op_info& op, const void* problem, bool host_fallback = false);
}  // namespace detail

/// Checks the problem, picks the first implementation that takes it and submits it. Nothing is launched or
/// written when it throws. Errors: invalid_argument (a rule of the operation, or a malformed PORTILE_IMPL),
/// unsupported (with the explanation), out_of_memory, device_error, capture_unsafe.
template <class P>
void run(queue& q, const P& problem, const run_options& options = {}) {
  detail::run(q, operation_of<P>(), &problem, options);
}
inline void run(queue& q, const any_problem& problem, const run_options& options = {}) {
  detail::run(q, problem.op(), problem.get(), options);
}

/// A choice made once: runs of problems that differ in pointers only skip checks and selection. It keeps the
/// options it was made with, the caller's workspace among them.
class PORTILE_API plan {
 public:
  template <class P>
  plan(queue& q, const P& problem, const run_options& options = {})
      : plan(q, operation_of<P>(), &problem, options) {}
  plan(queue& q, const any_problem& problem, const run_options& options = {})
      : plan(q, problem.op(), problem.get(), options) {}
  plan(queue& q, const op_info& op, const void* problem, const run_options& options);

  std::string_view implementation() const;
  std::string_view backend() const;
  std::size_t workspace_bytes() const;
  /// Whether runs copy to the host reference (queue property host_fallback).
  bool host_fallback() const;

  /// The problem must equal the planned one in everything but pointers; else invalid_argument.
  template <class P>
  void run(const P& problem) {
    run_erased(operation_of<P>(), &problem);
  }
  void run(const any_problem& problem) { run_erased(problem.op(), problem.get()); }
  void run_erased(const op_info& op, const void* problem);

 private:
  queue queue_;
  std::shared_ptr<detail::plan_state> state_;
};

/// Every candidate and the reason it was refused, and the one chosen. Launches nothing.
template <class P>
explanation explain(const queue& q, const P& problem) {
  return detail::explain(q.get_device().info(), q.get_device().text(), operation_of<P>(), &problem,
                         q.properties().host_fallback);
}
inline explanation explain(const queue& q, const any_problem& problem) {
  return detail::explain(q.get_device().info(), q.get_device().text(), problem.op(), problem.get(),
                         q.properties().host_fallback);
}
/// The same for a device that need not be there (see device_model).
inline explanation explain(const portile_device_info& model, const any_problem& problem) {
  return detail::explain(model, model.arch, problem.op(), problem.get());
}

/// Forces implementations: "gemm.nt=cuda.simt,moe.*=reference", the first rule that fits counts; empty text
/// undoes it. Replaces PORTILE_IMPL. A rule that names no operation is an invalid_argument.
PORTILE_API void set_forced_implementations(std::string_view list);

/// '*' stands for any characters, '?' for one.
PORTILE_API bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace portile
