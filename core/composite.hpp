#pragma once
// Operations that are made of others. Their one implementation, `composite`, belongs to libportile itself
// (backend "portile"), runs on every kind of device and does all its work through dispatch, so that each step
// runs the best implementation there is.
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include <portile/core/abi.h>
#include <portile/core/dispatch.hpp>

namespace portile {

/// device_kind of an implementation that runs on all of them.
inline constexpr std::int32_t any_device_kind = -1;

/// What `P::compose` is written with. It is called when the composite is chosen, to see what takes each step
/// and how much memory the steps and their temporaries need, and again for each run. Both times it must make
/// the same calls: it may look at metadata, not at data.
class composer {
 public:
  /// Memory of this run: contiguous, 256-byte aligned, not initialised.
  tensor temporary(dtype type, std::initializer_list<std::int64_t> extents);
  template <class P>
  void run(const P& step) {
    run(get_operation(P::name), &step);
  }

 private:
  friend class composition;
  composer() = default;
  void run(const op_info& op, const void* step);

  device where_;
  char* memory_ = nullptr;  ///< of the temporaries; while choosing, an address that is never used
  std::uint64_t used_ = 0;

  // Choosing.
  const portile_device_info* info_ = nullptr;
  bool host_fallback_ = false;
  std::uint64_t step_bytes_ = 0;
  std::string refusal_, steps_;

  // Running.
  queue* queue_ = nullptr;
  run_options options_;  ///< of every step: its workspace lies behind the temporaries
};

/// A composite as dispatch sees it.
class composition {
 public:
  using compose_fn = void (*)(const void* problem, composer& c);

  /// What a walk without running found.
  struct outline {
    std::string refusal;  ///< of the first step that nothing takes; empty: every step has an implementation
    std::string steps;    ///< "mhc.post (reference), ..."
    std::uint64_t temporary_bytes = 0, step_bytes = 0;  ///< step_bytes: the largest workspace of a step
    std::uint64_t workspace_bytes() const { return temporary_bytes + step_bytes; }
  };
  /// The problem has passed check().
  outline outline_on(const portile_device_info& where, const void* problem, bool host_fallback) const;
  /// `memory`: outline::workspace_bytes() bytes, 256-byte aligned.
  void run(queue& q, const void* problem, const outline& o, void* memory, const run_options& options) const;

  const portile_implementation* entry = nullptr;
  compose_fn compose = nullptr;
};

namespace detail {
/// Every composite (generated from kernels/ops.cmake).
const std::vector<composition>& compositions();
/// The one behind an entry of the registry; null for entries of plug-ins.
const composition* composition_of(const portile_implementation* entry);
/// The backend "portile", which lists them.
const portile_backend& builtin_backend();

// The functions of an entry.
std::int32_t composite_supports(const portile_implementation& entry, const portile_device_info& where,
                                const void* problem, char* text, std::size_t size);
std::int32_t composite_workspace(const portile_implementation& entry, const portile_device_info& where,
                                 const void* problem, std::uint64_t* bytes);
std::int32_t composite_launch(const portile_launch*, const void*, char* text, std::size_t size);

template <class P>
struct composite_entry {
  static const portile_implementation value;
};
template <class P>
const portile_implementation composite_entry<P>::value = {
    P::name,
    "composite",
    any_device_kind,
    0,
    "any",
    sizeof(P),
    [](const portile_device_info* d, const void* p, char* text, std::size_t size) {
      return composite_supports(value, *d, p, text, size);
    },
    [](const portile_device_info* d, const void* p, std::uint64_t* bytes) {
      return composite_workspace(value, *d, p, bytes);
    },
    &composite_launch,
};
}  // namespace detail

template <class P>
composition make_composition() {
  composition c;
  c.entry = &detail::composite_entry<P>::value;
  c.compose = [](const void* problem, composer& steps) { static_cast<const P*>(problem)->compose(steps); };
  return c;
}

}  // namespace portile
